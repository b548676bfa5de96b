"""Samples that are files, or parts of files: images and texts in folders, lines of JSON, members of tar archives."""

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Corrupt, Invalid
from falaj.feed.cache import Cache, Kept
from falaj.feed.order import Ids
from falaj.feed.plan import Unordered

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
Spans = NDArray[np.int64]
"""For each sample: the number of its file, where it begins there, and how many bytes it has; no bytes when -1."""


class Files(Unordered):
    """Columns of bytes that lie somewhere in files, read when asked for and made into values by `make`."""

    def __init__(self, files: Sequence[Kept], spans: dict[str, Spans], make: Callable[[str, bytes], Any]) -> None:
        self.files, self.spans, self.make = files, spans, make
        self.more: dict[str, NDArray[Any]] = {}
        self.classes: tuple[str, ...] = ()
        """The names of the labels, where folders are classes."""
        self.lines = False
        """Whether each sample is a JSON object whose keys are the columns."""
        self.columns: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.spans.values()), ()))

    def take(self, ids: Ids) -> dict[str, Any]:
        """Equal shapes are stacked; else a list."""
        read = {name: [self._read(name, row) for row in ids.tolist()] for name in self.spans}
        if self.lines:
            rows = read.pop("line")
            names = self.columns or list(rows[0])
            odd = next((n for n, row in enumerate(rows) if not set(names) <= row.keys()), None)
            if odd is not None:
                missing = ", ".join(name for name in names if name not in rows[odd])
                raise Invalid(f"sample {ids[odd]} has no column {missing}", f"it has: {', '.join(rows[odd])}")
            read = {name: [row[name] for row in rows] for name in names}
        stacked = {name: _stacked(values) for name, values in read.items()}
        return {**stacked, **{name: column[ids] for name, column in self.more.items()}}

    def _read(self, name: str, row: int) -> Any:
        nth, start, size = self.spans[name][row].tolist()
        if size < 0:
            return None
        where = f"{name} of sample {row} in {self.files[nth].path}"
        with self.files[nth].local() as path:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.pread(opened, size, start)
            finally:
                os.close(opened)
        if len(found) != size:
            raise Corrupt(f"{where} has {len(found)} bytes of {size}", "copy or write the file again")
        try:
            return self.make(name, found)
        except (ValueError, OSError, EOFError) as error:
            raise Corrupt(f"{where} cannot be read: {error}", "look at the file") from error


def open_folder(root: Path, files: Sequence[Path], decode: bool | None) -> Files:
    """Whole files, images or texts; the sub-folder a file lies in is its class, when there are sub-folders."""
    name = "image" if files[0].suffix.lower() in IMAGES else "text"
    spans = np.array([(nth, 0, file.stat().st_size) for nth, file in enumerate(files)], np.int64).reshape(-1, 3)
    made = Files([Kept(file) for file in files], {name: spans}, Making(decode))
    classes = sorted({file.relative_to(root).parts[0] for file in files if file.parent != root})
    if classes:
        if loose := next((file for file in files if file.parent == root), None):
            raise Invalid(f"{loose} lies beside the folders of classes", "move it into one of them")
        numbers = {label: number for number, label in enumerate(classes)}
        labels = np.array([numbers[file.relative_to(root).parts[0]] for file in files], np.int64)
        made.more, made.classes = {"label": labels}, tuple(classes)
    return made


def open_lines(files: Sequence[Path], columns: Sequence[str] | None, cache: Cache | None) -> Files:
    """JSON lines. Where lines begin is found by one pass over the bytes; blank lines are left out."""
    kept = [Kept(file, cache) for file in files]
    spans = np.concatenate([_lines(nth, file) for nth, file in enumerate(kept)])
    made = Files(kept, {"line": spans}, _object)
    made.lines, made.columns = True, columns
    if len(made):
        made.take(np.zeros(1, np.int64))
    return made


def open_tars(files: Sequence[Path], columns: Sequence[str] | None, cache: Cache | None, decode: bool | None) -> Files:
    """WebDataset's form: members of one name up to its first dot are a sample, the rest is the column."""
    kept = [Kept(file, cache) for file in files]
    samples: dict[tuple[int, str], dict[str, tuple[int, int, int]]] = {}
    for nth, file in enumerate(kept):
        for member, start, size in _members(file):
            folder, _, base = member.rpartition("/")
            key, _, column = base.partition(".")
            samples.setdefault((nth, f"{folder}/{key}"), {})[column.lower() or "data"] = (nth, start, size)
    known = sorted({column for sample in samples.values() for column in sample})
    if missing := sorted(set(columns or ()) - set(known)):
        raise Invalid(f"{files[0].parent} has no column {', '.join(missing)}", f"it has: {', '.join(known)}")
    spans = {
        column: np.array([sample.get(column, (nth, 0, -1)) for (nth, _), sample in samples.items()], np.int64)
        for column in columns or known
    }
    return Files(kept, spans, Making(decode))


class Making:
    """Bytes into values by what their column is called; images only where Pillow is, or when told to."""

    def __init__(self, decode: bool | None) -> None:
        self._decode = bool(find_spec("PIL")) if decode is None else decode
        if self._decode and not find_spec("PIL"):
            raise Invalid("images are decoded by Pillow, which is not installed", "pip install Pillow, or decode=False")

    def __call__(self, column: str, found: bytes) -> Any:
        kind = column.rpartition(".")[2]
        if kind == "image" or f".{kind}" in IMAGES:
            return self._image(found)
        if kind in {"cls", "id", "index"}:
            return int(found)
        if kind in {"txt", "text"}:
            return found.decode()
        if kind == "json":
            return json.loads(found)
        return np.load(io.BytesIO(found), allow_pickle=False) if kind == "npy" else found

    def _image(self, found: bytes) -> NDArray[np.uint8]:
        if not self._decode:
            return np.frombuffer(bytearray(found), np.uint8)
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]

        with Image.open(io.BytesIO(found)) as image:
            return np.array(image.convert("RGB"))


def _object(column: str, found: bytes) -> dict[str, Any]:
    del column
    row = json.loads(found)
    if not isinstance(row, dict):
        raise ValueError(f"{type(row).__name__} is no object")  # noqa: TRY004 - told on as what is wrong with the file
    return row


def _lines(nth: int, file: Kept) -> Spans:
    with file.local() as path:
        if not path.stat().st_size:
            return np.empty((0, 3), np.int64)
        raw = np.memmap(path, np.uint8, "r")
        ends = np.flatnonzero(raw == ord("\n"))
        if raw[-1] != ord("\n"):
            ends = np.append(ends, len(raw))
    starts = np.concatenate([[0], ends[:-1] + 1])
    # One or two bytes are a line end of another system, or nothing: no JSON object but {}.
    keep = ends - starts > 1
    return np.stack([np.full(keep.sum(), nth), starts[keep], (ends - starts)[keep]], axis=1).astype(np.int64)


def _members(file: Kept) -> list[tuple[str, int, int]]:
    """What a tar archive holds: read from its headers once, and kept beside it where that can be written."""
    beside = file.path.with_suffix(".tar.index")
    with contextlib.suppress(OSError, ValueError, TypeError):
        size, stamp, members = json.loads(beside.read_bytes())
        if [size, stamp] == list(file.seen):
            return [(name, start, length) for name, start, length in members]
    try:
        with file.local() as path, tarfile.open(path, "r:") as archive:
            found = [(member.name, member.offset_data, member.size) for member in archive if member.isfile()]
            end = max((start + -(-size // 512) * 512 for _, start, size in found), default=0)
            with path.open("rb") as raw:
                raw.seek(end)
                ended = raw.read(512) == bytes(512)
    except (tarfile.TarError, OSError) as error:
        raise Corrupt(f"{file.path} is no whole tar archive: {error}", "copy or write it again") from error
    if not ended:
        raise Corrupt(f"{file.path} is torn after {found[-1][0] if found else 'its start'}", "copy or write it again")
    with contextlib.suppress(OSError):
        draft = beside.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps([*file.seen, found]))
        draft.replace(beside)
    return found


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) and all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values):
        return np.stack(values)
    if all(type(value) in {int, float, bool} for value in values):
        return np.array(values)
    return values
