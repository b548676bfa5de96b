"""The newest snapshot in the memory of two nodes: a process, or a node, that is lost loses nothing since that step."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from falaj.core.errors import FalajError
from falaj.state.files import Folder, Turn, names, put
from falaj.state.format import Manifest, merged, understand
from falaj.state.reading import Need, fill, needs, wrong
from falaj.state.snapshot import Snapshot
from falaj.state.writing import Writer

_TEXT, _WISH, _DATA = 1, 2, 3


class Held(NamedTuple):
    """A step that is whole in the memories of the nodes, taken together."""

    manifest: Manifest
    sources: Mapping[str, int]
    """Which rank has a piece at hand."""


class Memory:
    """A folder of this node's shared memory; below it one of each rank, with its own snapshot and those it keeps for
    ranks of another node. Made by all ranks together, over a gloo group of all ranks that nobody else uses.

    `nodes` says on which node each rank runs.
    """

    def __init__(self, root: Path, group: dist.ProcessGroup, nodes: Sequence[int]) -> None:
        self._root, self._group, self._nodes = root, group, nodes
        self._rank, self._world = group.rank(), group.size()
        self._to = partner(self._rank, nodes)
        self._from = [rank for rank in range(self._world) if partner(rank, nodes) == self._rank]
        # A tag of our own, so that what is left of those who ran before is never taken for ours.
        self._place = Folder(root / str(self._rank), self._gather(uuid.uuid4().hex)[0])
        self._hands = ThreadPoolExecutor(2, "falaj-memory")
        self._writer = Writer(self._place, self._rank, self._world, self._hands)

    def keep(self, turn: Turn, snapshot: Snapshot, meta: Mapping[str, Any]) -> None:
        """Keep a snapshot here and on the partner's node, as all ranks do now; then let go of older ones."""
        mine = self._writer.write(turn, snapshot, meta)
        if self._to != self._rank:
            self._exchange(turn, mine)
        dist.barrier(group=self._group)
        self._forget(self._place.part(turn).name)

    def newest(self) -> Held | None:
        """The newest step that is whole; all ranks ask together, and all get the same answer."""
        here = self._parts()
        told = self._gather(
            {name: [[rank, part.world] for rank, part in parts.items()] for name, parts in here.items()}
        )
        whole = []
        for name in {name for said in told for name in said}:
            pairs = [pair for said in told for pair in said.get(name, ())]
            if {rank for rank, _ in pairs} == set(range(pairs[0][1])):
                whole.append((*self._place.split(name), name))
        if not whole:
            return None
        name = max(whole)[-1]
        texts = self._gather({str(rank): part.text().decode() for rank, part in here.get(name, {}).items()})
        parts = {int(rank): understand(text.encode()) for said in texts for rank, text in said.items()}
        holders = {int(rank): holder for holder in reversed(range(self._world)) for rank in texts[holder]}
        sources = {file: holders[rank] for rank, part in sorted(parts.items()) for file in part.files}
        return Held(merged(part for _, part in sorted(parts.items())), sources)

    def fetch(self, held: Held, into: Mapping[str, torch.Tensor], *, strict: bool = True) -> list[Need] | None:
        """Bring the pieces that this rank needs to its folder, all ranks together; None when one is not what it was."""
        wanted = needs(held.manifest, into, strict=strict)
        files = {need.piece.file for need in wanted}
        self._place.make()
        for path in self._root.glob("*/pieces/*"):
            if path.name in files and not (self._place.pieces / path.name).exists():
                os.link(path, self._place.pieces / path.name)
        missing = sorted(files - names(self._place.pieces))
        sending = []
        for rank, wishes in enumerate(self._gather(missing)):
            for file in wishes:
                if held.sources[file] == self._rank:
                    path = next(self._root.glob(f"*/pieces/{file}"))
                    sending.append(self._send(_mapped(path, path.stat().st_size), rank, _DATA))
        for file in missing:
            self._receive(file, held.manifest.files[file], held.sources[file])
        _done(sending)
        return None if wrong(self._place.pieces, files, self._hands, self._writer.known) else wanted

    def load(self, wanted: Sequence[Need]) -> None:
        """Fill tensors with what was fetched."""
        fill(self._place.pieces, wanted, self._hands)

    def close(self, *, done: bool) -> None:
        """When the job is done its memory is given back; else it is left for the next attempt."""
        self._hands.shutdown()
        if done:
            shutil.rmtree(self._place.path, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._root.rmdir()

    def _exchange(self, turn: Turn, mine: Manifest) -> None:
        text = torch.frombuffer(bytearray(mine.text()), dtype=torch.uint8)
        sending = [self._send(torch.tensor([len(text)]), self._to, _TEXT), self._send(text, self._to, _TEXT)]
        theirs = {rank: self._hear(rank) for rank in self._from}
        there, wishes = names(self._place.pieces), dict[int, list[str]]()
        for rank, part in theirs.items():
            wishes[rank] = [file for file in sorted(part.files) if file not in there]
            wish = torch.tensor([file not in there for file in sorted(part.files)] or [False])
            sending.append(self._send(wish, rank, _WISH))
            there |= set(part.files)
        wish = torch.zeros(max(1, len(mine.files)), dtype=torch.bool)
        dist.recv(wish, self._to, self._group, _WISH)
        for wanted, (file, size) in zip(wish.tolist(), sorted(mine.files.items()), strict=False):
            if wanted:
                sending.append(self._send(_mapped(self._place.pieces / file, size), self._to, _DATA))
        for rank, part in theirs.items():
            for file in wishes[rank]:
                self._receive(file, part.files[file], rank)
            put(self._place.part(turn) / f"{rank}.json", part.text())
        _done(sending)

    def _hear(self, rank: int) -> Manifest:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, rank, self._group, _TEXT)
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(text, rank, self._group, _TEXT)
        return understand(text.numpy().tobytes())

    def _send(self, tensor: torch.Tensor, rank: int, tag: int) -> tuple[Any, torch.Tensor]:
        return dist.isend(tensor, rank, self._group, tag), tensor  # which must live until it is sent

    def _receive(self, file: str, size: int, rank: int) -> None:
        fresh = self._place.pieces / f".{file}"
        dist.recv(_mapped(fresh, size), rank, self._group, _DATA)
        fresh.rename(self._place.pieces / file)

    def _gather(self, said: Any) -> list[Any]:
        """What every rank says, as JSON."""
        data = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._world)]
        dist.all_gather(sizes, torch.tensor([len(data)]), self._group)
        longest = max(map(int, sizes))
        rows = [torch.empty(longest, dtype=torch.uint8) for _ in range(self._world)]
        dist.all_gather(rows, torch.nn.functional.pad(data, (0, longest - len(data))), self._group)
        return [json.loads(row[: int(size)].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def _parts(self) -> dict[str, dict[int, Manifest]]:
        """What this node has, by turn and rank."""
        found: dict[str, dict[int, Manifest]] = {}
        for path in self._root.glob("*/parts/*/*.json"):
            with contextlib.suppress(OSError, FalajError):
                part = understand(path.read_bytes())
                if not Folder(path.parents[2], "").lacking(part.files):
                    found.setdefault(path.parent.name, {})[int(path.stem)] = part
        return found

    def _forget(self, newest: str) -> None:
        for name in names(self._place.parts) - {newest}:
            shutil.rmtree(self._place.parts / name, ignore_errors=True)
        texts = (path.read_bytes() for path in (self._place.parts / newest).glob("*.json"))
        wanted = {file for text in texts for file in understand(text).files}
        for name in names(self._place.pieces) - wanted:
            (self._place.pieces / name).unlink()
        here = {str(rank) for rank, node in enumerate(self._nodes) if node == self._nodes[self._rank]}
        for name in names(self._root) - here:
            shutil.rmtree(self._root / name, ignore_errors=True)


def partner(rank: int, nodes: Sequence[int]) -> int:
    """Who keeps a copy for it: the one in its place on the next node; itself when there is one node only."""
    order = list(dict.fromkeys(nodes))
    members = {node: [other for other, its in enumerate(nodes) if its == node] for node in order}
    after = members[order[(order.index(nodes[rank]) + 1) % len(order)]]
    return rank if len(order) == 1 else after[members[nodes[rank]].index(rank) % len(after)]


def _mapped(path: Path, size: int) -> torch.Tensor:
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def _done(sending: Sequence[tuple[Any, torch.Tensor]]) -> None:
    for work, _ in sending:
        work.wait()
