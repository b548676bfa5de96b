"""A copy of the tensors in host memory that every save uses again: training stands still for the copy only."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from falaj.state.manifest import ManifestPiece, SavedTensor, to_dtype_name
from falaj.state.tensor_boxes import OwnedBox, TensorBox, cut_box, find_owned_box, local_memory, split_share, view_part

PACK_BYTES = 64 << 20
LARGE_BYTES = 4 << 20
"""A tensor of so much gets pieces of its own: when it did not change they are there already."""
SLAB_BYTES = 1 << 30
_ALIGN = 64


class SnapshotEntry(NamedTuple):
    """One box of a tensor and the memory it is copied to."""

    name: str
    holding: TensorBox
    box: TensorBox
    start: int
    copy: torch.Tensor


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """The bytes of one piece file, and what lies in them."""

    memory: torch.Tensor
    entries: tuple[SnapshotEntry, ...]


class HostSnapshot:
    """The newest copy of what this rank writes."""

    def __init__(self, rank: int, peers: Sequence[int]) -> None:
        self._rank, self._peers = rank, peers
        self._signature: tuple[Any, ...] = ()
        self._shapes: dict[str, SavedTensor] = {}
        self.packs: list[PackedPiece] = []
        self._copy_stream: Any = None
        self._copy_event: Any = None
        self._copy_executor = ThreadPoolExecutor(1, "falaj-copy")
        self._copy_future: Future[None] | None = None

    def plan(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Have memory for these tensors; nothing to do when it is there from the last time."""
        signature = tuple((n, t.dtype, t.shape, getattr(t, "placements", None), t.device) for n, t in tensors.items())
        if signature == self._signature:
            return
        self.packs = []
        device = next((t.device for t in tensors.values() if t.device.type == "cuda"), None)
        self._copy_stream = torch.cuda.Stream(device) if device else None  # type: ignore[no-untyped-call]
        self._shapes = {n: SavedTensor(to_dtype_name(t.dtype), tuple(t.shape)) for n, t in tensors.items()}
        with torch.no_grad():
            self.packs = _pack_tensors(tensors, self._rank, self._peers, is_pinned=device is not None)
        self._signature = signature

    def take(self, tensors: Mapping[str, torch.Tensor], late_names: Collection[str] = ()) -> None:
        """Copy. Tensors named in `late_names` may still be read after this returns, until `fence` does."""
        self.plan(tensors)
        entries = [entry for pack in self.packs for entry in pack.entries]
        immediate = [entry for entry in entries if entry.name not in late_names]
        late_entries = [entry for entry in entries if entry.name in late_names]
        if self._copy_stream is None:
            _copy_entries(immediate, tensors)
            self._copy_future = (
                self._copy_executor.submit(_copy_entries, late_entries, tensors) if late_entries else None
            )
            return
        current = torch.cuda.current_stream(self._copy_stream.device)
        self._copy_stream.wait_stream(current)
        with torch.cuda.stream(self._copy_stream):
            _copy_entries(immediate, tensors)
            early_event = self._copy_stream.record_event()
            _copy_entries(late_entries, tensors)
            self._copy_event = self._copy_stream.record_event()
        if late_entries:
            current.wait_event(early_event)
        else:
            early_event.synchronize()

    def fence(self) -> None:
        """What is done to the tensors from here on comes after the copy."""
        if self._copy_future is not None:
            self._copy_future.result()
        if self._copy_event is not None:
            torch.cuda.current_stream(self._copy_stream.device).wait_event(self._copy_event)

    def ready(self) -> list[PackedPiece]:
        """The packs, once their bytes are there."""
        if self._copy_future is not None:
            self._copy_future.result()
        if self._copy_event is not None:
            self._copy_event.synchronize()
        return self.packs

    def told(self, files: Sequence[str]) -> dict[str, SavedTensor]:
        """Every tensor this rank holds, with the pieces it wrote in files of these names."""
        pieces: dict[str, list[ManifestPiece]] = {name: [] for name in self._shapes}
        for pack, file in zip(self.packs, files, strict=True):
            for entry in pack.entries:
                pieces[entry.name].append(ManifestPiece(file, entry.start, entry.box))
        return {
            name: SavedTensor(saved.dtype, saved.shape, tuple(pieces[name])) for name, saved in self._shapes.items()
        }

    def close(self) -> None:
        """Let go of the memory."""
        self._copy_executor.shutdown()
        self.packs, self._signature = [], ()


def _copy_entries(entries: Sequence[SnapshotEntry], tensors: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        local_tensors = {name: local_memory(tensors[name]) for name in {entry.name for entry in entries}}
        for entry in entries:
            source = local_tensors[entry.name]
            entry.copy.copy_(view_part(source, entry.holding, entry.box), non_blocking=True)
            if source.is_cuda:
                source.record_stream(torch.cuda.current_stream(source.device))


class _BoxToPack(NamedTuple):
    name: str
    holding: TensorBox
    box: TensorBox
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return self.box.items * self.dtype.itemsize


def _pack_tensors(
    tensors: Mapping[str, torch.Tensor], rank: int, peers: Sequence[int], *, is_pinned: bool
) -> list[PackedPiece]:
    large: list[list[_BoxToPack]] = []
    small: list[list[_BoxToPack]] = []
    free_bytes = 0
    for name, tensor in tensors.items():
        owned_box: OwnedBox = find_owned_box(tensor, peers)
        for own_box in split_share(name, owned_box, rank, tensor.dtype.itemsize):
            for box in cut_box(own_box, PACK_BYTES // tensor.dtype.itemsize):
                box_to_pack = _BoxToPack(name, owned_box.box, box, tensor.dtype)
                if box_to_pack.size_bytes >= LARGE_BYTES:
                    large.append([box_to_pack])
                    continue
                if box_to_pack.size_bytes + _ALIGN > free_bytes:
                    small.append([])
                    free_bytes = PACK_BYTES
                small[-1].append(box_to_pack)
                free_bytes -= -(-box_to_pack.size_bytes // _ALIGN) * _ALIGN
    groups = large + small
    memory = _allocate_regions([_count_bytes(group) for group in groups], is_pinned=is_pinned)
    return [_build_pack(group, region) for group, region in zip(groups, memory, strict=True)]


def _count_bytes(group: Sequence[_BoxToPack]) -> int:
    return sum(-(-box_to_pack.size_bytes // _ALIGN) * _ALIGN for box_to_pack in group)


def _allocate_regions(sizes: Sequence[int], *, is_pinned: bool) -> list[torch.Tensor]:
    """Memory for each, out of few large slabs: pinned memory is slow to get and comes in powers of two."""
    regions: list[torch.Tensor] = []
    remaining = sum(sizes)
    slab = torch.empty(0, dtype=torch.uint8)
    for size in sizes:
        if size > len(slab):
            slab = torch.empty(max(size, min(remaining, SLAB_BYTES)), dtype=torch.uint8, pin_memory=is_pinned)
        regions.append(slab[:size])
        slab, remaining = slab[size:], remaining - size
    return regions


def _build_pack(group: Sequence[_BoxToPack], memory: torch.Tensor) -> PackedPiece:
    entries, start = [], 0
    for box_to_pack in group:
        copy = memory[start : start + box_to_pack.size_bytes].view(box_to_pack.dtype).view(box_to_pack.box.size)
        entries.append(SnapshotEntry(box_to_pack.name, box_to_pack.holding, box_to_pack.box, start, copy))
        start += -(-box_to_pack.size_bytes // _ALIGN) * _ALIGN
    memory.zero_()  # the first touch of a page is dear: not in the first save
    return PackedPiece(memory, tuple(entries))
