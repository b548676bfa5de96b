"""Reading a checkpoint: is it whole, are its bytes what they were, and which of them does this rank need."""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from falaj.core.errors import Corrupt, Invalid
from falaj.state.boxes import Box, held, local, overlap, part
from falaj.state.format import Manifest, Piece, dtype_name, dtype_of
from falaj.state.writing import DIGEST


class Need(NamedTuple):
    """Memory to be filled from a part of a piece."""

    piece: Piece
    dtype: torch.dtype
    box: Box
    target: torch.Tensor


def needs(manifest: Manifest, into: Mapping[str, torch.Tensor], *, strict: bool) -> list[Need]:
    """What this rank must read to fill its tensors; Invalid when they are not those that were saved."""
    found: list[Need] = []
    for name, tensor in into.items():
        saved = manifest.tensors.get(name)
        if saved is None:
            if strict:
                raise Invalid(f"the checkpoint of step {manifest.step} has no {name}", "is it of this model?")
            continue
        if saved.shape != tuple(tensor.shape):
            raise Invalid(f"{name} was saved as {saved.shape} and is {tuple(tensor.shape)} now", "is it of this model?")
        if strict and saved.dtype != dtype_name(tensor.dtype):
            raise Invalid(
                f"{name} was saved as {saved.dtype} and is {dtype_name(tensor.dtype)} now", "keep the precision"
            )
        with torch.no_grad():
            holding, memory = held(tensor, (0,)).box, local(tensor)
            both = ((piece, overlap(piece.box, holding)) for piece in saved.pieces)
            found += [Need(one, dtype_of(saved.dtype), box, part(memory, holding, box)) for one, box in both if box]
    return found


def wrong(pieces: Path, files: Collection[str], hands: ThreadPoolExecutor, known: set[str]) -> str:
    """Why these piece files are not what was written; nothing when they are. `known` are not read again."""
    unread = sorted(set(files) - known)
    for digest, found in zip(unread, hands.map(lambda name: _digest(pieces / name), unread), strict=True):
        if found != digest:
            return f"the piece {digest[:12]} {'is not what was written' if found else 'is gone'}"
        known.add(digest)
    return ""


def fill(pieces: Path, wanted: Iterable[Need], hands: ThreadPoolExecutor) -> None:
    """Read, each file in a thread of its own, only the bytes that are needed."""
    files: dict[str, list[Need]] = {}
    for need in wanted:
        files.setdefault(need.piece.file, []).append(need)
    list(hands.map(lambda item: _fill_from(pieces / item[0], item[1]), files.items()))


def _digest(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, DIGEST).hexdigest()
    except FileNotFoundError:
        return ""


def _fill_from(path: Path, wanted: Iterable[Need]) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with torch.no_grad():
            for need in wanted:
                _fill(file, need)
    finally:
        os.close(file)


def _fill(file: int, need: Need) -> None:
    """Straight into the tensor where its memory lies as the piece does; else by way of a buffer."""
    size, item = need.piece.box.size, need.dtype.itemsize
    steps = [*accumulate(reversed(size[1:]), lambda a, b: a * b, initial=1)][::-1] if size else []
    inside = [a - b for a, b in zip(need.box.at, need.piece.box.at, strict=True)]
    first = sum(n * step for n, step in zip(inside, steps, strict=True))
    items = 1 + sum((n - 1) * step for n, step in zip(need.box.size, steps, strict=True))
    start, target = need.piece.start + first * item, need.target
    straight = items == prod(need.box.size)
    if straight and target.device.type == "cpu" and target.is_contiguous() and target.dtype == need.dtype:
        _read(file, start, target.view(-1).view(torch.uint8))
        return
    buffer = torch.empty(items * item, dtype=torch.uint8, pin_memory=target.is_cuda)
    _read(file, start, buffer)
    target.copy_(buffer.view(need.dtype).as_strided(need.box.size, steps))


def _read(file: int, start: int, into: torch.Tensor) -> None:
    view = memoryview(into.numpy())  # type: ignore[arg-type]
    while view:
        got = os.preadv(file, [view], start)
        if not got:
            raise Corrupt("a piece ends too early", "it changed while it was read")
        start, view = start + got, view[got:]
