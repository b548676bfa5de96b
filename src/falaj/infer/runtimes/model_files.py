"""The files of a model: each is read once, and only as it was approved."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from falaj.core.errors import CorruptData, Invalid
from falaj.drift.records import PROFILE_FILE as PROFILE

MAX_MODEL_FILES = 10_000
CODE_PREFIX = "code:"
"""Before the path of a file that belongs to the model's code and not to the model."""


class ModelFiles:
    """The files of one version. With digests given, bytes that are not those are never handed out."""

    def __init__(self, folder: str | Path, digests: Mapping[str, str]) -> None:
        self._folder, self._digests = Path(folder), digests
        self._root = self._folder.resolve()
        if not self._root.is_dir():
            raise Invalid(f"there is no folder of the model at {self._folder.name}", "fetch the model first")
        self.size_bytes = 0
        """What has been read so far."""

    def names(self) -> tuple[str, ...]:
        """Paths below the folder, in order; hidden ones are not looked at."""
        paths = [path.relative_to(self._folder) for path in self._folder.rglob("*") if path.is_file()]
        if len(paths) > MAX_MODEL_FILES:
            raise Invalid(f"the model has {len(paths)} files", f"{MAX_MODEL_FILES} at most")
        return tuple(sorted(str(path) for path in paths if not any(part.startswith(".") for part in path.parts)))

    def read(self, name: str) -> bytes:
        """The bytes of one file: read once, checked, and these are what is loaded."""
        path = self._folder / name
        if not self._digests and not path.resolve().is_relative_to(self._root):
            raise Invalid(f"{name[:100]} lies outside the model", "put the file itself into the folder")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CorruptData(f"{name[:100]} cannot be read: {error.strerror}", "fetch the model again") from error
        self._check_digest(name, data)
        self.size_bytes += len(data)
        return data

    def only(self, name: str, *suffixes: str) -> str:
        """The file that is loaded: the one the sheet names, or the only one of its kind."""
        if name:
            return name
        candidates = [
            candidate
            for candidate in self.names()
            if candidate.endswith(suffixes) and candidate not in ("falaj.json", PROFILE)
        ]
        if len(candidates) != 1:
            raise Invalid(
                f"the model has {len(candidates)} files like *{suffixes[0]}", 'name one in falaj.json: {"file": "…"}'
            )
        return candidates[0]

    def copy(self, target_folder: Path) -> None:
        """All files as approved, for what can only be loaded from a folder of its own."""
        for name in self.names():
            path = target_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.read(name))

    def below(self, folder: str) -> "ModelFiles":
        """Those in a folder of the model, under their own names."""
        prefix = f"{folder}/"
        inner = {name.removeprefix(prefix): digest for name, digest in self._digests.items() if name.startswith(prefix)}
        if self._digests and not inner:
            raise CorruptData(
                f"nothing of {folder[:100]} was approved", "publish and approve the model as it lies here"
            )
        return ModelFiles(self._folder / folder, inner)

    @property
    def digests(self) -> Mapping[str, str]:
        return self._digests

    @property
    def folder(self) -> Path:
        return self._folder

    def _check_digest(self, name: str, data: bytes) -> None:
        if not self._digests:
            return
        expected_digest = self._digests.get(name)
        if expected_digest is None:
            raise CorruptData(f"{name[:100]} is not among the approved files", "publish and approve the model as it is")
        if hashlib.sha256(data).hexdigest() != expected_digest.removeprefix("sha256:"):
            raise CorruptData(
                f"{name[:100]} is not what was approved", "fetch the model again; it was changed on the way"
            )


def code_files(folder: str, digests: Mapping[str, str]) -> ModelFiles:
    """The files of a model's code: checked where digests of them (`code:PATH`) were given."""
    return ModelFiles(
        folder, {name[len(CODE_PREFIX) :]: digest for name, digest in digests.items() if name.startswith(CODE_PREFIX)}
    )
