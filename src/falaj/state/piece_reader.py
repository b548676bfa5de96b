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

from falaj.core.errors import CorruptData, Invalid
from falaj.state.manifest import CheckpointManifest, ManifestPiece, parse_dtype, to_dtype_name
from falaj.state.piece_writer import DIGEST_NAME
from falaj.state.tensor_boxes import TensorBox, find_overlap, find_owned_box, local_memory, view_part


class PieceNeed(NamedTuple):
    """Memory to be filled from a part of a piece."""

    piece: ManifestPiece
    dtype: torch.dtype
    box: TensorBox
    target: torch.Tensor


def list_needs(manifest: CheckpointManifest, targets: Mapping[str, torch.Tensor], *, strict: bool) -> list[PieceNeed]:
    """What this rank must read to fill its tensors; Invalid when they are not those that were saved."""
    needed: list[PieceNeed] = []
    for name, tensor in targets.items():
        saved = manifest.tensors.get(name)
        if saved is None:
            if strict:
                raise Invalid(f"the checkpoint of step {manifest.step} has no {name}", "is it of this model?")
            continue
        if saved.shape != tuple(tensor.shape):
            raise Invalid(f"{name} was saved as {saved.shape} and is {tuple(tensor.shape)} now", "is it of this model?")
        if strict and saved.dtype != to_dtype_name(tensor.dtype):
            raise Invalid(
                f"{name} was saved as {saved.dtype} and is {to_dtype_name(tensor.dtype)} now", "keep the precision"
            )
        with torch.no_grad():
            owned_box, memory = find_owned_box(tensor, (0,)).box, local_memory(tensor)
            overlaps = ((piece, find_overlap(piece.box, owned_box)) for piece in saved.pieces)
            needed += [
                PieceNeed(saved_piece, parse_dtype(saved.dtype), box, view_part(memory, owned_box, box))
                for saved_piece, box in overlaps
                if box
            ]
    return needed


def find_damaged_piece(pieces: Path, files: Collection[str], io_pool: ThreadPoolExecutor, verified: set[str]) -> str:
    """Why these piece files are not what was written; nothing when they are. `verified` are not read again."""
    unread = sorted(set(files) - verified)
    for digest, actual_digest in zip(unread, io_pool.map(lambda name: _hash_file(pieces / name), unread), strict=True):
        if actual_digest != digest:
            return f"the piece {digest[:12]} {'is not what was written' if actual_digest else 'is gone'}"
        verified.add(digest)
    return ""


def fill_tensors(pieces: Path, needed: Iterable[PieceNeed], io_pool: ThreadPoolExecutor) -> None:
    """Read, each file in a thread of its own, only the bytes that are needed."""
    files: dict[str, list[PieceNeed]] = {}
    for need in needed:
        files.setdefault(need.piece.file, []).append(need)
    list(io_pool.map(lambda item: _fill_from_file(pieces / item[0], item[1]), files.items()))


def _hash_file(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, DIGEST_NAME).hexdigest()
    except FileNotFoundError:
        return ""


def _fill_from_file(path: Path, needed: Iterable[PieceNeed]) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with torch.no_grad():
            for need in needed:
                _fill_tensor(file, need)
    finally:
        os.close(file)


def _fill_tensor(file: int, need: PieceNeed) -> None:
    """Straight into the tensor where its memory lies as the piece does; else by way of a buffer."""
    size, item_bytes = need.piece.box.size, need.dtype.itemsize
    steps = [*accumulate(reversed(size[1:]), lambda a, b: a * b, initial=1)][::-1] if size else []
    offsets = [a - b for a, b in zip(need.box.at, need.piece.box.at, strict=True)]
    first_item = sum(n * step for n, step in zip(offsets, steps, strict=True))
    items = 1 + sum((n - 1) * step for n, step in zip(need.box.size, steps, strict=True))
    start, target = need.piece.start + first_item * item_bytes, need.target
    is_contiguous = items == prod(need.box.size)
    if is_contiguous and target.device.type == "cpu" and target.is_contiguous() and target.dtype == need.dtype:
        _read_into(file, start, target.view(-1).view(torch.uint8))
        return
    buffer = torch.empty(items * item_bytes, dtype=torch.uint8, pin_memory=target.is_cuda)
    _read_into(file, start, buffer)
    target.copy_(buffer.view(need.dtype).as_strided(need.box.size, steps))


def _read_into(file: int, start: int, target: torch.Tensor) -> None:
    view = memoryview(target.numpy())  # type: ignore[arg-type]
    while view:
        byte_count = os.preadv(file, [view], start)
        if not byte_count:
            raise CorruptData("a piece ends too early", "it changed while it was read")
        start, view = start + byte_count, view[byte_count:]
