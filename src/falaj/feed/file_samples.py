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

from falaj.core.errors import CorruptData, Invalid
from falaj.feed.batch_plan import AnyOrderSource
from falaj.feed.file_cache import FileCache, SourceFile
from falaj.feed.permutation import Ids

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
SampleSpans = NDArray[np.int64]
"""For each sample: the number of its file, where it begins there, and how many bytes it has; no bytes when -1."""


class FileSamples(AnyOrderSource):
    """Columns of bytes that lie somewhere in files, read when asked for and made into values by `make`."""

    def __init__(
        self, files: Sequence[SourceFile], spans: dict[str, SampleSpans], make: Callable[[str, bytes], Any]
    ) -> None:
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
        values_by_column = {name: [self._read_value(name, row) for row in ids.tolist()] for name in self.spans}
        if self.lines:
            rows = values_by_column.pop("line")
            names = self.columns or list(rows[0])
            bad_row = next((n for n, row in enumerate(rows) if not set(names) <= row.keys()), None)
            if bad_row is not None:
                missing = ", ".join(name for name in names if name not in rows[bad_row])
                raise Invalid(f"sample {ids[bad_row]} has no column {missing}", f"it has: {', '.join(rows[bad_row])}")
            values_by_column = {name: [row[name] for row in rows] for name in names}
        stacked = {name: _stack_values(values) for name, values in values_by_column.items()}
        return {**stacked, **{name: column[ids] for name, column in self.more.items()}}

    def _read_value(self, name: str, row: int) -> Any:
        file_number, start, size = self.spans[name][row].tolist()
        if size < 0:
            return None
        location = f"{name} of sample {row} in {self.files[file_number].path}"
        with self.files[file_number].local() as path:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                content = os.pread(fd, size, start)
            finally:
                os.close(fd)
        if len(content) != size:
            raise CorruptData(f"{location} has {len(content)} bytes of {size}", "copy or write the file again")
        try:
            return self.make(name, content)
        except (ValueError, OSError, EOFError) as error:
            raise CorruptData(f"{location} cannot be read: {error}", "look at the file") from error


def open_folder(root: Path, files: Sequence[Path], decode: bool | None) -> FileSamples:
    """Whole files, images or texts; the sub-folder a file lies in is its class, when there are sub-folders."""
    name = "image" if files[0].suffix.lower() in IMAGE_SUFFIXES else "text"
    spans = np.array(
        [(file_number, 0, file.stat().st_size) for file_number, file in enumerate(files)], np.int64
    ).reshape(-1, 3)
    samples = FileSamples([SourceFile(file) for file in files], {name: spans}, ValueDecoder(decode))
    classes = sorted({file.relative_to(root).parts[0] for file in files if file.parent != root})
    if classes:
        if stray_file := next((file for file in files if file.parent == root), None):
            raise Invalid(f"{stray_file} lies beside the folders of classes", "move it into one of them")
        numbers = {label: number for number, label in enumerate(classes)}
        labels = np.array([numbers[file.relative_to(root).parts[0]] for file in files], np.int64)
        samples.more, samples.classes = {"label": labels}, tuple(classes)
    return samples


def open_lines(files: Sequence[Path], columns: Sequence[str] | None, cache: FileCache | None) -> FileSamples:
    """JSON lines. Where lines begin is found by one pass over the bytes; blank lines are left out."""
    source_files = [SourceFile(file, cache) for file in files]
    spans = np.concatenate([_find_lines(file_number, file) for file_number, file in enumerate(source_files)])
    samples = FileSamples(source_files, {"line": spans}, _parse_object)
    samples.lines, samples.columns = True, columns
    if len(samples):
        samples.take(np.zeros(1, np.int64))
    return samples


def open_tars(
    files: Sequence[Path], columns: Sequence[str] | None, cache: FileCache | None, decode: bool | None
) -> FileSamples:
    """WebDataset's form: members of one name up to its first dot are a sample, the rest is the column."""
    source_files = [SourceFile(file, cache) for file in files]
    samples: dict[tuple[int, str], dict[str, tuple[int, int, int]]] = {}
    for file_number, file in enumerate(source_files):
        for member, start, size in _read_members(file):
            folder, _, base = member.rpartition("/")
            key, _, column = base.partition(".")
            samples.setdefault((file_number, f"{folder}/{key}"), {})[column.lower() or "data"] = (
                file_number,
                start,
                size,
            )
    column_names = sorted({column for sample in samples.values() for column in sample})
    if missing := sorted(set(columns or ()) - set(column_names)):
        raise Invalid(f"{files[0].parent} has no column {', '.join(missing)}", f"it has: {', '.join(column_names)}")
    spans = {
        column: np.array(
            [sample.get(column, (file_number, 0, -1)) for (file_number, _), sample in samples.items()], np.int64
        )
        for column in columns or column_names
    }
    return FileSamples(source_files, spans, ValueDecoder(decode))


class ValueDecoder:
    """Bytes into values by what their column is called; images only where Pillow is, or when told to."""

    def __init__(self, decode: bool | None) -> None:
        self._decode = bool(find_spec("PIL")) if decode is None else decode
        if self._decode and not find_spec("PIL"):
            raise Invalid("images are decoded by Pillow, which is not installed", "pip install Pillow, or decode=False")

    def __call__(self, column: str, content: bytes) -> Any:
        kind = column.rpartition(".")[2]
        if kind == "image" or f".{kind}" in IMAGE_SUFFIXES:
            return self._decode_image(content)
        if kind in {"cls", "id", "index"}:
            return int(content)
        if kind in {"txt", "text"}:
            return content.decode()
        if kind == "json":
            return json.loads(content)
        return np.load(io.BytesIO(content), allow_pickle=False) if kind == "npy" else content

    def _decode_image(self, content: bytes) -> NDArray[np.uint8]:
        if not self._decode:
            return np.frombuffer(bytearray(content), np.uint8)
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]

        with Image.open(io.BytesIO(content)) as image:
            return np.array(image.convert("RGB"))


def _parse_object(column: str, content: bytes) -> dict[str, Any]:
    del column
    row = json.loads(content)
    if not isinstance(row, dict):
        raise ValueError(f"{type(row).__name__} is no object")  # noqa: TRY004 - told on as what is wrong with the file
    return row


def _find_lines(file_number: int, file: SourceFile) -> SampleSpans:
    with file.local() as path:
        if not path.stat().st_size:
            return np.empty((0, 3), np.int64)
        raw = np.memmap(path, np.uint8, "r")
        line_ends = np.flatnonzero(raw == ord("\n"))
        if raw[-1] != ord("\n"):
            line_ends = np.append(line_ends, len(raw))
    starts = np.concatenate([[0], line_ends[:-1] + 1])
    # One or two bytes are a line end of another system, or nothing: no JSON object but {}.
    keep = line_ends - starts > 1
    return np.stack([np.full(keep.sum(), file_number), starts[keep], (line_ends - starts)[keep]], axis=1).astype(
        np.int64
    )


def _read_members(file: SourceFile) -> list[tuple[str, int, int]]:
    """What a tar archive holds: read from its headers once, and kept beside it where that can be written."""
    index_path = file.path.with_suffix(".tar.index")
    with contextlib.suppress(OSError, ValueError, TypeError):
        size, stamp, members = json.loads(index_path.read_bytes())
        if [size, stamp] == list(file.seen):
            return [(name, start, length) for name, start, length in members]
    try:
        with file.local() as path, tarfile.open(path, "r:") as archive:
            file_members = [(member.name, member.offset_data, member.size) for member in archive if member.isfile()]
            archive_end = max((start + -(-size // 512) * 512 for _, start, size in file_members), default=0)
            with path.open("rb") as raw:
                raw.seek(archive_end)
                is_complete = raw.read(512) == bytes(512)
    except (tarfile.TarError, OSError) as error:
        raise CorruptData(f"{file.path} is no whole tar archive: {error}", "copy or write it again") from error
    if not is_complete:
        raise CorruptData(
            f"{file.path} is torn after {file_members[-1][0] if file_members else 'its start'}",
            "copy or write it again",
        )
    with contextlib.suppress(OSError):
        draft = index_path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps([*file.seen, file_members]))
        draft.replace(index_path)
    return file_members


def _stack_values(values: list[Any]) -> Any:
    first_value = values[0]
    if isinstance(first_value, np.ndarray) and all(
        isinstance(v, np.ndarray) and v.shape == first_value.shape for v in values
    ):
        return np.stack(values)
    if all(type(value) in {int, float, bool} for value in values):
        return np.array(values)
    return values
