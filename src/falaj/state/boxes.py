"""Which part of a tensor a rank holds, and which of the copies it writes: boxes in the tensor as a whole."""

import zlib
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from falaj.core.errors import Invalid

SPREAD_BYTES = 1 << 16
"""Copies of less are written by one of those that hold them; of more, each writes its share."""


class Box(NamedTuple):
    """A part of a tensor: where it begins and how long it is in every dimension."""

    at: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def items(self) -> int:
        return prod(self.size)


class Holding(NamedTuple):
    """What a rank holds of a tensor, and which ranks hold the same."""

    box: Box
    ranks: tuple[int, ...]


def whole(tensor: torch.Tensor) -> Box:
    """All of it."""
    return Box((0,) * tensor.dim(), tuple(tensor.shape))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory behind what this rank holds."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.device.type == "meta":
        raise Invalid("a tensor has no memory yet: it is on the meta device", "materialise the model first")
    return tensor.detach()


def held(tensor: torch.Tensor, peers: Sequence[int]) -> Holding:
    """What this rank holds. Of a plain tensor that is all of it, and so do its `peers`."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return Holding(whole(tensor), tuple(peers))
    here, placements = mesh.get_coordinate(), tensor.placements  # type: ignore[attr-defined]
    if here is None or any(placement.is_partial() for placement in placements):
        raise Invalid(f"a tensor placed as {placements} cannot be saved", "redistribute it first")
    at, size = [0] * tensor.dim(), list(tensor.shape)
    # A strided shard is one that was cut again after the plain ones (FSDP over tensor parallelism).
    order = sorted(range(len(placements)), key=lambda n: hasattr(placements[n], "split_factor"))
    for number in order:
        if hasattr(placements[number], "dim"):
            axis = placements[number].dim % max(1, tensor.dim())
            rows = -(-size[axis] // mesh.size(number))
            start = min(size[axis], rows * here[number])
            at[axis], size[axis] = at[axis] + start, min(rows, size[axis] - start)
    same = tuple(slice(None) if p.is_replicate() else here[n] for n, p in enumerate(placements))
    return Holding(Box(tuple(at), tuple(size)), tuple(mesh.mesh[same].flatten().tolist()))


def share(name: str, holding: Holding, rank: int, item_bytes: int) -> list[Box]:
    """The boxes this rank writes, so that all that hold the same write about as much as each other."""
    copies = len(holding.ranks)
    boxes = [holding.box]
    if holding.box.items * item_bytes >= SPREAD_BYTES * copies:
        boxes = cut(holding.box, -(-holding.box.items // copies))
    first = zlib.crc32(name.encode())
    return [box for n, box in enumerate(boxes) if box.items and holding.ranks[(first + n) % copies] == rank]


def cut(box: Box, most: int) -> list[Box]:
    """Boxes of at most so many items, each in one row of memory where the whole box is."""
    if box.items <= max(1, most):
        return [box]
    axis = next(n for n, size in enumerate(box.size) if size > 1)
    rows = max(1, most // prod(box.size[axis + 1 :]))
    made = []
    for start in range(0, box.size[axis], rows):
        at, size = list(box.at), list(box.size)
        at[axis], size[axis] = at[axis] + start, min(rows, size[axis] - start)
        made += cut(Box(tuple(at), tuple(size)), most)
    return made


def overlap(one: Box, other: Box) -> Box | None:
    """What both cover."""
    at = tuple(map(max, one.at, other.at))
    ends = (min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True))
    size = tuple(end - start for start, end in zip(at, ends, strict=True))
    return Box(at, size) if all(length > 0 for length in size) else None


def part(held_tensor: torch.Tensor, holding: Box, box: Box) -> torch.Tensor:
    """The view of what is held that covers this box."""
    if box == holding:
        return held_tensor
    starts = (a - b for a, b in zip(box.at, holding.at, strict=True))
    return held_tensor[tuple(slice(s, s + n) for s, n in zip(starts, box.size, strict=True))]
