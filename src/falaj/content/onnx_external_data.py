"""The one thing we ask of an ONNX file: which other files it wants read. A bounded walk over its protobuf, no more."""

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from falaj.core.errors import Invalid

MAX_PARTS = 2_000_000
MAX_DEPTH = 64
_TENSOR_MESSAGE, _ENTRY_MESSAGE = "tensor", "entry"
_LOCATION_KEY, _RANGE_KEYS = b"location", (b"offset", b"length")
_COUNT_PATTERN = re.compile(rb"[0-9]{1,19}")
_CHILD_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: _TENSOR_MESSAGE, 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR_MESSAGE, 6: "graph", 10: _TENSOR_MESSAGE, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR_MESSAGE, 2: _TENSOR_MESSAGE},
    _TENSOR_MESSAGE: {13: _ENTRY_MESSAGE},
}
"""Which fields of which message hold messages that can lead to a tensor, as onnx.proto numbers them."""


def find_external_files(file: BinaryIO, size: int, folder: Path) -> set[Path]:
    """The files beside it that hold its tensors; Invalid when one lies elsewhere, is a link, is not there or ends
    before what a tensor wants of it."""
    return {
        _require_file_beside(folder, tensor_fields)
        for tensor_fields in _iterate_external_tensors(_FileWindow(file.fileno()), size)
    }


class _FileWindow:
    """The bytes of a file by place, a page at a time: a walk jumps over weights, and a file may shrink meanwhile."""

    def __init__(self, file: int) -> None:
        self._file, self._page_start, self._page = file, 0, b""

    def __getitem__(self, _position: int) -> int:
        if not self._page_start <= _position < self._page_start + len(self._page):
            self._page_start, self._page = _position, os.pread(self._file, 4096, _position)
            if not self._page:
                raise _truncated_error()
        return self._page[_position - self._page_start]

    def text(self, start: int, stop: int) -> bytes:
        """The bytes between; what is too long for a path is cut."""
        return os.pread(self._file, min(stop - start, 4097), start)


def _iterate_external_tensors(data: _FileWindow, size: int) -> Iterator[dict[bytes, bytes]]:
    """What each tensor that lies elsewhere says of that."""
    for _, entries in groupby(_iterate_entries(data, size), itemgetter(0)):
        tensor_fields: dict[bytes, bytes] = {}
        for _, key, value in entries:
            if key in tensor_fields:  # readers differ in which of the two counts
                raise Invalid("a tensor says twice where its external data lies", "export it again")
            if key in (_LOCATION_KEY, *_RANGE_KEYS):
                tensor_fields[key] = value
        if _LOCATION_KEY in tensor_fields:
            yield tensor_fields


def _iterate_entries(data: _FileWindow, size: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Of which tensor, key and value, those of one tensor together. Walks without recursion, every step counted."""
    stack = [("model", 0, size, 0)]
    part_count, graph_count, tensor_count = 0, 0, 0
    while stack:
        message_type, position, end, depth = stack.pop()
        tensor_count += message_type == _TENSOR_MESSAGE
        pair: dict[int, bytes] = {}
        while position < end:
            part_count += 1
            if part_count > MAX_PARTS or depth > MAX_DEPTH:
                raise Invalid("it has too many parts or is nested too deep to be checked", "export it again")
            number, start, position = _read_field(data, position, end)
            child_message = _CHILD_MESSAGES.get(message_type, {}).get(number) if start >= 0 else None
            graph_count += child_message == "graph"
            if child_message:
                stack.append((child_message, start, position, depth + 1))
            elif message_type == _ENTRY_MESSAGE and start >= 0:
                pair[number] = data.text(start, position)
        if message_type == _ENTRY_MESSAGE:
            yield tensor_count, pair.get(1, b""), pair.get(2, b"")
    if not graph_count:
        raise _truncated_error()


def _read_field(data: _FileWindow, position: int, end: int) -> tuple[int, int, int]:
    """The number of the field at `position`, where its bytes begin (-1 when it has none) and where it ends."""
    tag, position = _read_varint(data, position, end)
    number, wire_type = tag >> 3, tag & 7
    start = -1
    if wire_type == 0:
        _, position = _read_varint(data, position, end)
    elif wire_type == 2:
        length, start = _read_varint(data, position, end)
        position = start + length
    elif wire_type in (1, 5):
        position += 8 if wire_type == 1 else 4
    else:
        raise _truncated_error()
    if not number or position > end:
        raise _truncated_error()
    return number, start, position


def _read_varint(data: _FileWindow, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
    raise _truncated_error()


def _require_file_beside(folder: Path, tensor_fields: dict[bytes, bytes]) -> Path:
    """The file that a tensor names, if it is a plain file under the folder of the model and holds what it wants."""
    location = tensor_fields[_LOCATION_KEY].decode("utf-8", "surrogateescape")
    parts = location.split("/")
    data_text = f"its external data {location!r:.200}"
    if any(part in ("", ".", "..") for part in parts) or "\\" in location or "\0" in location or ":" in location:
        raise Invalid(f"{data_text} lies outside the model", "export it with its data beside it, or inside it")
    path, size = folder, -1
    with contextlib.suppress(OSError):  # a name that no file can have
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise Invalid(f"{data_text} is a link", "put the file itself beside the model")
        size = path.stat().st_size if path.is_file() else -1
    if size < 0:
        raise Invalid(f"{data_text} is not there", "add it to the folder of the model")
    range_values = [tensor_fields.get(key, b"0") for key in _RANGE_KEYS]
    if not all(map(_COUNT_PATTERN.fullmatch, range_values)) or sum(map(int, range_values)) > size:
        range_text = " and ".join(f"{text.decode('ascii', 'replace')!r:.40}" for text in range_values)
        raise Invalid(
            f"{data_text} has {size} bytes and not those at offset and length {range_text}", "export it again"
        )
    return path.resolve()


def _truncated_error() -> Invalid:
    return Invalid("it is not ONNX, or it is cut short", "export it again")
