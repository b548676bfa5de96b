"""What a script itself says about how it is to be run: the framework it imports, and what autotune found for it."""

import json
import re
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid

TUNED_FILE = "falaj-train.json"
"""Beside a script: how `falaj train autotune` found that it runs fastest."""
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+(.*))?", re.MULTILINE)
_MAX_BYTES = 1 << 20
_FRAMEWORKS = {
    "torch": "torch", "lightning": "torch", "accelerate": "torch", "transformers": "torch", "falaj.train": "torch",
    "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax", "flax": "jax",
    "horovod": "horovod", "mpi4py": "mpi",
}  # fmt: skip


def apply_script_defaults(script: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """The words of a job with what its script says where the words are silent."""
    filled = dict(fields)
    if not filled.get("framework") and (framework := detect_framework(script)):
        filled["framework"] = framework
    tuned_file = script.parent / TUNED_FILE
    env = dict(filled.get("env") or {})
    if "FALAJ_TRAIN" not in env and tuned_file.is_file():
        filled["env"] = {**env, "FALAJ_TRAIN": _read_tuned_options(tuned_file, script.name)}
        if filled["env"]["FALAJ_TRAIN"] == "{}":
            filled["env"] = env
    return filled


def detect_framework(script: Path) -> str:
    """The framework whose processes must meet, by what the script imports; nothing when it imports none."""
    text = script.read_bytes()[:_MAX_BYTES].decode(errors="replace")
    imports = _IMPORTS.findall(text)
    imported = {module for module, _ in imports}
    imported |= {f"{module}.{name.strip()}" for module, names in imports for name in names.split(",")}
    frameworks = [
        framework
        for name, framework in _FRAMEWORKS.items()
        if any(_is_within(candidate, name) for candidate in imported)
    ]
    # A script of Horovod imports torch or TensorFlow, too.
    return next(
        (candidate for candidate in ("horovod", "mpi") if candidate in frameworks), frameworks[0] if frameworks else ""
    )


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _read_tuned_options(path: Path, script: str) -> str:
    """The options for this script, as one line of JSON; other scripts of the folder have theirs."""
    try:
        options_by_script = json.loads(path.read_text(encoding="utf-8"))
        return json.dumps(options_by_script.get(script, {}))
    except (OSError, ValueError, AttributeError):
        raise Invalid(
            f"{path.name} cannot be read", "falaj train autotune writes it; remove it or tune again"
        ) from None
