"""Which part of a tensor a rank holds, and which of the copies it writes: boxes in the tensor as a whole."""

import zlib
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from falaj.core.errors import Invalid

MIN_SHARED_BYTES = 1 << 16
"""Copies of less are written by one of those that hold them; of more, each writes its share."""


class TensorBox(NamedTuple):
    """A part of a tensor: where it begins and how long it is in every dimension."""

    at: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def items(self) -> int:
        return prod(self.size)


class OwnedBox(NamedTuple):
    """What a rank holds of a tensor, and which ranks hold the same."""

    box: TensorBox
    ranks: tuple[int, ...]


def find_full_box(tensor: torch.Tensor) -> TensorBox:
    """All of it."""
    return TensorBox((0,) * tensor.dim(), tuple(tensor.shape))


def local_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory behind what this rank holds."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.device.type == "meta":
        raise Invalid("a tensor has no memory yet: it is on the meta device", "materialise the model first")
    return tensor.detach()


def find_owned_box(tensor: torch.Tensor, peers: Sequence[int]) -> OwnedBox:
    """What this rank holds. Of a plain tensor that is all of it, and so do its `peers`."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return OwnedBox(find_full_box(tensor), tuple(peers))
    coordinate, placements = mesh.get_coordinate(), tensor.placements  # type: ignore[attr-defined]
    if coordinate is None or any(placement.is_partial() for placement in placements):
        raise Invalid(f"a tensor placed as {placements} cannot be saved", "redistribute it first")
    offset, size = [0] * tensor.dim(), list(tensor.shape)
    # A strided shard is one that was cut again after the plain ones (FSDP over tensor parallelism).
    mesh_order = sorted(range(len(placements)), key=lambda n: hasattr(placements[n], "split_factor"))
    for number in mesh_order:
        if hasattr(placements[number], "dim"):
            axis = placements[number].dim % max(1, tensor.dim())
            rows = -(-size[axis] // mesh.size(number))
            start = min(size[axis], rows * coordinate[number])
            offset[axis], size[axis] = offset[axis] + start, min(rows, size[axis] - start)
    replica_index = tuple(slice(None) if p.is_replicate() else coordinate[n] for n, p in enumerate(placements))
    return OwnedBox(TensorBox(tuple(offset), tuple(size)), tuple(mesh.mesh[replica_index].flatten().tolist()))


def split_share(name: str, owned_box: OwnedBox, rank: int, item_bytes: int) -> list[TensorBox]:
    """The boxes this rank writes, so that all that hold the same write about as much as each other."""
    copies = len(owned_box.ranks)
    boxes = [owned_box.box]
    if owned_box.box.items * item_bytes >= MIN_SHARED_BYTES * copies:
        boxes = cut_box(owned_box.box, -(-owned_box.box.items // copies))
    first_owner = zlib.crc32(name.encode())
    return [box for n, box in enumerate(boxes) if box.items and owned_box.ranks[(first_owner + n) % copies] == rank]


def cut_box(box: TensorBox, max_items: int) -> list[TensorBox]:
    """Boxes of at most so many items, each in one row of memory where the whole box is."""
    if box.items <= max(1, max_items):
        return [box]
    axis = next(n for n, size in enumerate(box.size) if size > 1)
    rows = max(1, max_items // prod(box.size[axis + 1 :]))
    boxes = []
    for start in range(0, box.size[axis], rows):
        offset, size = list(box.at), list(box.size)
        offset[axis], size[axis] = offset[axis] + start, min(rows, size[axis] - start)
        boxes += cut_box(TensorBox(tuple(offset), tuple(size)), max_items)
    return boxes


def find_overlap(first: TensorBox, other: TensorBox) -> TensorBox | None:
    """What both cover."""
    offset = tuple(map(max, first.at, other.at))
    box_ends = (min(a + n, b + m) for a, n, b, m in zip(*first, *other, strict=True))
    size = tuple(end - start for start, end in zip(offset, box_ends, strict=True))
    return TensorBox(offset, size) if all(length > 0 for length in size) else None


def view_part(local_tensor: torch.Tensor, owned_box: TensorBox, box: TensorBox) -> torch.Tensor:
    """The view of what is held that covers this box."""
    if box == owned_box:
        return local_tensor
    starts = (a - b for a, b in zip(box.at, owned_box.at, strict=True))
    return local_tensor[tuple(slice(s, s + n) for s, n in zip(starts, box.size, strict=True))]
