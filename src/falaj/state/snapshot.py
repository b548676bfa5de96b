"""A copy of the tensors in host memory that every save uses again: training stands still for the copy only."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from falaj.state.boxes import Box, Holding, cut, held, local, part, share
from falaj.state.format import Piece, Saved, dtype_name

PACK_BYTES = 64 << 20
LARGE_BYTES = 4 << 20
"""A tensor of so much gets pieces of its own: when it did not change they are there already."""
SLAB_BYTES = 1 << 30
_ALIGN = 64


class Entry(NamedTuple):
    """One box of a tensor and the memory it is copied to."""

    name: str
    holding: Box
    box: Box
    start: int
    copy: torch.Tensor


@dataclass(frozen=True, slots=True)
class Pack:
    """The bytes of one piece file, and what lies in them."""

    memory: torch.Tensor
    entries: tuple[Entry, ...]


class Snapshot:
    """The newest copy of what this rank writes."""

    def __init__(self, rank: int, peers: Sequence[int]) -> None:
        self._rank, self._peers = rank, peers
        self._like: tuple[Any, ...] = ()
        self._shapes: dict[str, Saved] = {}
        self.packs: list[Pack] = []
        self._side: Any = None
        self._copied: Any = None
        self._copier = ThreadPoolExecutor(1, "falaj-copy")
        self._copying: Future[None] | None = None

    def plan(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Have memory for these tensors; nothing to do when it is there from the last time."""
        like = tuple((n, t.dtype, t.shape, getattr(t, "placements", None), t.device) for n, t in tensors.items())
        if like == self._like:
            return
        self.packs = []
        device = next((t.device for t in tensors.values() if t.device.type == "cuda"), None)
        self._side = torch.cuda.Stream(device) if device else None  # type: ignore[no-untyped-call]
        self._shapes = {n: Saved(dtype_name(t.dtype), tuple(t.shape)) for n, t in tensors.items()}
        with torch.no_grad():
            self.packs = _packed(tensors, self._rank, self._peers, pinned=device is not None)
        self._like = like

    def take(self, tensors: Mapping[str, torch.Tensor], later: Collection[str] = ()) -> None:
        """Copy. Tensors named in `later` may still be read after this returns, until `fence` does."""
        self.plan(tensors)
        entries = [entry for pack in self.packs for entry in pack.entries]
        now = [entry for entry in entries if entry.name not in later]
        rest = [entry for entry in entries if entry.name in later]
        if self._side is None:
            _copy(now, tensors)
            self._copying = self._copier.submit(_copy, rest, tensors) if rest else None
            return
        current = torch.cuda.current_stream(self._side.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            _copy(now, tensors)
            early = self._side.record_event()
            _copy(rest, tensors)
            self._copied = self._side.record_event()
        if rest:
            current.wait_event(early)
        else:
            early.synchronize()

    def fence(self) -> None:
        """What is done to the tensors from here on comes after the copy."""
        if self._copying is not None:
            self._copying.result()
        if self._copied is not None:
            torch.cuda.current_stream(self._side.device).wait_event(self._copied)

    def ready(self) -> list[Pack]:
        """The packs, once their bytes are there."""
        if self._copying is not None:
            self._copying.result()
        if self._copied is not None:
            self._copied.synchronize()
        return self.packs

    def told(self, files: Sequence[str]) -> dict[str, Saved]:
        """Every tensor this rank holds, with the pieces it wrote in files of these names."""
        pieces: dict[str, list[Piece]] = {name: [] for name in self._shapes}
        for pack, file in zip(self.packs, files, strict=True):
            for entry in pack.entries:
                pieces[entry.name].append(Piece(file, entry.start, entry.box))
        return {name: Saved(saved.dtype, saved.shape, tuple(pieces[name])) for name, saved in self._shapes.items()}

    def close(self) -> None:
        """Let go of the memory."""
        self._copier.shutdown()
        self.packs, self._like = [], ()


def _copy(entries: Sequence[Entry], tensors: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        held_now = {name: local(tensors[name]) for name in {entry.name for entry in entries}}
        for entry in entries:
            source = held_now[entry.name]
            entry.copy.copy_(part(source, entry.holding, entry.box), non_blocking=True)
            if source.is_cuda:
                source.record_stream(torch.cuda.current_stream(source.device))


class _Wanted(NamedTuple):
    name: str
    holding: Box
    box: Box
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return self.box.items * self.dtype.itemsize


def _packed(tensors: Mapping[str, torch.Tensor], rank: int, peers: Sequence[int], *, pinned: bool) -> list[Pack]:
    large: list[list[_Wanted]] = []
    small: list[list[_Wanted]] = []
    room = 0
    for name, tensor in tensors.items():
        holding: Holding = held(tensor, peers)
        for mine in share(name, holding, rank, tensor.dtype.itemsize):
            for box in cut(mine, PACK_BYTES // tensor.dtype.itemsize):
                wanted = _Wanted(name, holding.box, box, tensor.dtype)
                if wanted.size_bytes >= LARGE_BYTES:
                    large.append([wanted])
                    continue
                if wanted.size_bytes + _ALIGN > room:
                    small.append([])
                    room = PACK_BYTES
                small[-1].append(wanted)
                room -= -(-wanted.size_bytes // _ALIGN) * _ALIGN
    groups = large + small
    memory = _memory([_room(group) for group in groups], pinned=pinned)
    return [_pack(group, where) for group, where in zip(groups, memory, strict=True)]


def _room(group: Sequence[_Wanted]) -> int:
    return sum(-(-wanted.size_bytes // _ALIGN) * _ALIGN for wanted in group)


def _memory(sizes: Sequence[int], *, pinned: bool) -> list[torch.Tensor]:
    """Memory for each, out of few large slabs: pinned memory is slow to get and comes in powers of two."""
    given: list[torch.Tensor] = []
    left = sum(sizes)
    slab = torch.empty(0, dtype=torch.uint8)
    for size in sizes:
        if size > len(slab):
            slab = torch.empty(max(size, min(left, SLAB_BYTES)), dtype=torch.uint8, pin_memory=pinned)
        given.append(slab[:size])
        slab, left = slab[size:], left - size
    return given


def _pack(group: Sequence[_Wanted], memory: torch.Tensor) -> Pack:
    entries, start = [], 0
    for wanted in group:
        copy = memory[start : start + wanted.size_bytes].view(wanted.dtype).view(wanted.box.size)
        entries.append(Entry(wanted.name, wanted.holding, wanted.box, start, copy))
        start += -(-wanted.size_bytes // _ALIGN) * _ALIGN
    memory.zero_()  # the first touch of a page is dear: not in the first save
    return Pack(memory, tuple(entries))
