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

MOST_PARTS = 2_000_000
MOST_DEPTH = 64
_TENSOR, _ENTRY = "tensor", "entry"
_LOCATION, _SPAN = b"location", (b"offset", b"length")
_COUNT = re.compile(rb"[0-9]{1,19}")
_GRAMMAR: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {13: _ENTRY},
}
"""Which fields of which message hold messages that can lead to a tensor, as onnx.proto numbers them."""


def external_data(file: BinaryIO, size: int, folder: Path) -> set[Path]:
    """The files beside it that hold its tensors; Invalid when one lies elsewhere, is a link, is not there or ends
    before what a tensor wants of it."""
    return {_beside(folder, told) for told in _told(_Window(file.fileno()), size)}


class _Window:
    """The bytes of a file by place, a page at a time: a walk jumps over weights, and a file may shrink meanwhile."""

    def __init__(self, file: int) -> None:
        self._file, self._from, self._page = file, 0, b""

    def __getitem__(self, at: int) -> int:
        if not self._from <= at < self._from + len(self._page):
            self._from, self._page = at, os.pread(self._file, 4096, at)
            if not self._page:
                raise _cut()
        return self._page[at - self._from]

    def text(self, start: int, stop: int) -> bytes:
        """The bytes between; what is too long for a path is cut."""
        return os.pread(self._file, min(stop - start, 4097), start)


def _told(data: _Window, size: int) -> Iterator[dict[bytes, bytes]]:
    """What each tensor that lies elsewhere says of that."""
    for _, entries in groupby(_entries(data, size), itemgetter(0)):
        told: dict[bytes, bytes] = {}
        for _, key, value in entries:
            if key in told:  # readers differ in which of the two counts
                raise Invalid("a tensor says twice where its external data lies", "export it again")
            if key in (_LOCATION, *_SPAN):
                told[key] = value
        if _LOCATION in told:
            yield told


def _entries(data: _Window, size: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Of which tensor, key and value, those of one tensor together. Walks without recursion, every step counted."""
    stack = [("model", 0, size, 0)]
    parts, graphs, tensors = 0, 0, 0
    while stack:
        kind, at, end, depth = stack.pop()
        tensors += kind == _TENSOR
        pair: dict[int, bytes] = {}
        while at < end:
            parts += 1
            if parts > MOST_PARTS or depth > MOST_DEPTH:
                raise Invalid("it has too many parts or is nested too deep to be checked", "export it again")
            number, start, at = _field(data, at, end)
            child = _GRAMMAR.get(kind, {}).get(number) if start >= 0 else None
            graphs += child == "graph"
            if child:
                stack.append((child, start, at, depth + 1))
            elif kind == _ENTRY and start >= 0:
                pair[number] = data.text(start, at)
        if kind == _ENTRY:
            yield tensors, pair.get(1, b""), pair.get(2, b"")
    if not graphs:
        raise _cut()


def _field(data: _Window, at: int, end: int) -> tuple[int, int, int]:
    """The number of the field at `at`, where its bytes begin (-1 when it has none) and where it ends."""
    tag, at = _varint(data, at, end)
    number, wire = tag >> 3, tag & 7
    start = -1
    if wire == 0:
        _, at = _varint(data, at, end)
    elif wire == 2:
        length, start = _varint(data, at, end)
        at = start + length
    elif wire in (1, 5):
        at += 8 if wire == 1 else 4
    else:
        raise _cut()
    if not number or at > end:
        raise _cut()
    return number, start, at


def _varint(data: _Window, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise _cut()


def _beside(folder: Path, told: dict[bytes, bytes]) -> Path:
    """The file that a tensor names, if it is a plain file under the folder of the model and holds what it wants."""
    location = told[_LOCATION].decode("utf-8", "surrogateescape")
    parts = location.split("/")
    said = f"its external data {location!r:.200}"
    if any(part in ("", ".", "..") for part in parts) or "\\" in location or "\0" in location or ":" in location:
        raise Invalid(f"{said} lies outside the model", "export it with its data beside it, or inside it")
    path, size = folder, -1
    with contextlib.suppress(OSError):  # a name that no file can have
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise Invalid(f"{said} is a link", "put the file itself beside the model")
        size = path.stat().st_size if path.is_file() else -1
    if size < 0:
        raise Invalid(f"{said} is not there", "add it to the folder of the model")
    span = [told.get(key, b"0") for key in _SPAN]
    if not all(map(_COUNT.fullmatch, span)) or sum(map(int, span)) > size:
        wanted = " and ".join(f"{text.decode('ascii', 'replace')!r:.40}" for text in span)
        raise Invalid(f"{said} has {size} bytes and not those at offset and length {wanted}", "export it again")
    return path.resolve()


def _cut() -> Invalid:
    return Invalid("it is not ONNX, or it is cut short", "export it again")
