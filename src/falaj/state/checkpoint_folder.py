"""The folder of checkpoints: names in it, and writing so that a file is there, whole, or not there at all."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_MANIFEST_PATTERN = re.compile(r"step-(\d+)\.json")


class SaveId(NamedTuple):
    """A save: of which step, and which of the attempt's saves it is. A step that failed may be saved again."""

    step: int
    number: int


class CheckpointFolder:
    """Where the manifests, the pieces and the parts of unfinished saves lie. Every rank sees the same folder."""

    def __init__(self, path: Path, attempt: str) -> None:
        self.path, self.attempt = path, attempt
        self.pieces, self.parts = path / "pieces", path / "parts"

    def make(self) -> None:
        """Have the folders."""
        self.pieces.mkdir(parents=True, exist_ok=True)
        self.parts.mkdir(exist_ok=True)

    def manifest(self, step: int) -> Path:
        return self.path / f"step-{step}.json"

    def part(self, save_id: SaveId) -> Path:
        """Where the ranks of this attempt lay down what they wrote. Other attempts have their own place, so that what a
        killed one left behind is never taken for ours."""
        return self.parts / f"{save_id.step}.{save_id.number}.{self.attempt}"

    def split(self, name: str) -> tuple[SaveId, str]:
        """Which turn, and of which attempt, a place is for."""
        step, number, attempt = name.split(".", 2)
        return SaveId(int(step), int(number)), attempt

    def steps(self) -> list[int]:
        """Of every manifest there is, newest first."""
        matches = (_MANIFEST_PATTERN.fullmatch(name) for name in list_names(self.path))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def lacking(self, files: Mapping[str, int]) -> str:
        """Why a checkpoint of these piece files is not whole; nothing when it is."""
        for digest, size in files.items():
            try:
                actual_size = (self.pieces / digest).stat().st_size
            except FileNotFoundError:
                return f"the piece {digest[:12]} is gone"
            if actual_size != size:
                return f"the piece {digest[:12]} has {actual_size} bytes of {size}"
        return ""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among those who publish and sweep, of whatever attempt."""
        file = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def write_durable(path: Path, text: bytes) -> None:
    """Write a small file so that it survives the machine, or is not there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def list_names(folder: Path) -> set[str]:
    """What is in a folder; nothing when it is not there."""
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive the machine."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
