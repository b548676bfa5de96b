"""A folder of models, NAME/VERSION/…, that callers may load and unload by name. Names never become paths unchecked."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid, NotFound
from falaj.infer.records import ModelConfig

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_VERSION_PATTERN = re.compile(r"[0-9]{1,18}")
_OPTION_TYPES = {"threads": int, "queue": int, "delay_ms": float, "timeout_s": float, "cache": int, "idle_s": float}
CODE_FOLDER = "code"
"""The folder of a version that holds the code of torch and python models."""


class ModelRepository:
    """The models that lie in one folder."""

    def __init__(self, folder: str) -> None:
        self._root = Path(folder)

    def all(self) -> list[tuple[str, str]]:
        """Every name and version there, in order."""
        if not self._root.is_dir():
            return []
        names = sorted(
            folder.name
            for folder in self._root.iterdir()
            if _NAME_PATTERN.fullmatch(folder.name) and _is_real_folder(folder)
        )
        return [(name, version) for name in names for version in self.versions(name)]

    def versions(self, name: str) -> list[str]:
        """Those of one model, the newest last."""
        folder = self._root / name
        if not _NAME_PATTERN.fullmatch(name) or not _is_real_folder(folder):
            return []
        version_names = [
            subfolder.name
            for subfolder in folder.iterdir()
            if _VERSION_PATTERN.fullmatch(subfolder.name) and _is_real_folder(subfolder)
        ]
        return sorted(version_names, key=lambda version: (int(version), version))

    def find(self, name: str, parameters: Mapping[str, Any]) -> ModelConfig:
        """The newest version of a model, or the one that `parameters.version` names, with the options that
        `parameters.config` (JSON, as Triton takes it) changes."""
        unknown = sorted(set(parameters) - {"config", "version"})
        if unknown and unknown[0].startswith("file:"):
            raise Invalid(
                "the files of models are not taken from callers", "put the model into the repository's folder"
            )
        if unknown:
            raise Invalid(f"a model cannot be loaded with {unknown[0][:60]!r}", "config and version can be given")
        known_versions = self.versions(name)
        version = str(parameters.get("version") or (known_versions[-1] if known_versions else ""))
        if version not in known_versions:
            raise NotFound(f"there is no {name[:100]!r} {version[:20]} in the repository", "look at its index")
        folder = self._root / name / version
        code = folder / CODE_FOLDER
        config = ModelConfig(name, version, str(folder), str(code) if _is_real_folder(code) else "")
        return _apply_options(config, parameters.get("config") or "{}")


def _apply_options(config: ModelConfig, config_value: Any) -> ModelConfig:
    try:
        decoded = json.loads(config_value) if isinstance(config_value, str) else config_value
        options = {name: _OPTION_TYPES[name](value) for name, value in dict(decoded).items()}
    except KeyError as error:
        raise Invalid(f"{error.args[0]!s:.60} is no option of a model", f"one of {', '.join(_OPTION_TYPES)}") from error
    except (TypeError, ValueError) as error:
        raise Invalid("the config is no JSON object of numbers", 'for example {"queue": 256}') from error
    if any(not 0 <= value < 1 << 31 for value in options.values()):
        raise Invalid("an option of the model is below 0 or too large", "look at the figures")
    return replace(config, **options)


def _is_real_folder(path: Path) -> bool:
    """A folder that is no link: what lies elsewhere is no model of ours."""
    return path.is_dir() and not path.is_symlink()
