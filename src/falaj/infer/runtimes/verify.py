"""The files of a model: each is read once, and only as it was approved."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from falaj.core.errors import Corrupt, Invalid
from falaj.drift.records import FILE as PROFILE

MOST_FILES = 10_000
CODE = "code:"
"""Before the path of a file that belongs to the model's code and not to the model."""


class Files:
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
        found = [path.relative_to(self._folder) for path in self._folder.rglob("*") if path.is_file()]
        if len(found) > MOST_FILES:
            raise Invalid(f"the model has {len(found)} files", f"{MOST_FILES} at most")
        return tuple(sorted(str(path) for path in found if not any(part.startswith(".") for part in path.parts)))

    def read(self, name: str) -> bytes:
        """The bytes of one file: read once, checked, and these are what is loaded."""
        path = self._folder / name
        if not self._digests and not path.resolve().is_relative_to(self._root):
            raise Invalid(f"{name[:100]} lies outside the model", "put the file itself into the folder")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise Corrupt(f"{name[:100]} cannot be read: {error.strerror}", "fetch the model again") from error
        self._check(name, data)
        self.size_bytes += len(data)
        return data

    def only(self, name: str, *suffixes: str) -> str:
        """The file that is loaded: the one the sheet names, or the only one of its kind."""
        if name:
            return name
        found = [one for one in self.names() if one.endswith(suffixes) and one not in ("falaj.json", PROFILE)]
        if len(found) != 1:
            raise Invalid(
                f"the model has {len(found)} files like *{suffixes[0]}", 'name one in falaj.json: {"file": "…"}'
            )
        return found[0]

    def copy(self, to: Path) -> None:
        """All files as approved, for what can only be loaded from a folder of its own."""
        for name in self.names():
            path = to / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.read(name))

    def below(self, folder: str) -> "Files":
        """Those in a folder of the model, under their own names."""
        prefix = f"{folder}/"
        inner = {name.removeprefix(prefix): digest for name, digest in self._digests.items() if name.startswith(prefix)}
        if self._digests and not inner:
            raise Corrupt(f"nothing of {folder[:100]} was approved", "publish and approve the model as it lies here")
        return Files(self._folder / folder, inner)

    @property
    def digests(self) -> Mapping[str, str]:
        return self._digests

    @property
    def folder(self) -> Path:
        return self._folder

    def _check(self, name: str, data: bytes) -> None:
        if not self._digests:
            return
        wanted = self._digests.get(name)
        if wanted is None:
            raise Corrupt(f"{name[:100]} is not among the approved files", "publish and approve the model as it is")
        if hashlib.sha256(data).hexdigest() != wanted.removeprefix("sha256:"):
            raise Corrupt(f"{name[:100]} is not what was approved", "fetch the model again; it was changed on the way")


def code_of(folder: str, digests: Mapping[str, str]) -> Files:
    """The files of a model's code: checked where digests of them (`code:PATH`) were given."""
    return Files(folder, {name[len(CODE) :]: one for name, one in digests.items() if name.startswith(CODE)})
