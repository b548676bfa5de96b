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
from falaj.state.checkpoint_folder import CheckpointFolder, SaveId, list_names, write_durable
from falaj.state.host_snapshot import HostSnapshot
from falaj.state.manifest import CheckpointManifest, merge_manifests, parse_manifest
from falaj.state.piece_reader import PieceNeed, fill_tensors, find_damaged_piece, list_needs
from falaj.state.piece_writer import PieceWriter

_MANIFEST_TAG, _REQUEST_TAG, _PIECE_TAG = 1, 2, 3


class MemoryCheckpoint(NamedTuple):
    """A step that is whole in the memories of the nodes, taken together."""

    manifest: CheckpointManifest
    sources: Mapping[str, int]
    """Which rank has a piece at hand."""


class NodeMemory:
    """A folder of this node's shared memory; below it one of each rank, with its own snapshot and those it keeps for
    ranks of another node. Made by all ranks together, over a gloo group of all ranks that nobody else uses.

    `nodes` says on which node each rank runs.
    """

    def __init__(self, root: Path, group: dist.ProcessGroup, nodes: Sequence[int]) -> None:
        self._root, self._group, self._nodes = root, group, nodes
        self._rank, self._world = group.rank(), group.size()
        self._partner = find_partner(self._rank, nodes)
        self._partner_of = [rank for rank in range(self._world) if find_partner(rank, nodes) == self._rank]
        # A tag of our own, so that what is left of those who ran before is never taken for ours.
        self._checkpoint_folder = CheckpointFolder(root / str(self._rank), self._gather_json(uuid.uuid4().hex)[0])
        self._io_pool = ThreadPoolExecutor(2, "falaj-memory")
        self._writer = PieceWriter(self._checkpoint_folder, self._rank, self._world, self._io_pool)

    def keep(self, save_id: SaveId, snapshot: HostSnapshot, meta: Mapping[str, Any]) -> None:
        """Keep a snapshot here and on the partner's node, as all ranks do now; then let go of older ones."""
        own_manifest = self._writer.write(save_id, snapshot, meta)
        if self._partner != self._rank:
            self._exchange_parts(save_id, own_manifest)
        dist.barrier(group=self._group)
        self._forget_older(self._checkpoint_folder.part(save_id).name)

    def newest(self) -> MemoryCheckpoint | None:
        """The newest step that is whole; all ranks ask together, and all get the same answer."""
        own_parts = self._read_parts()
        gathered = self._gather_json(
            {name: [[rank, part.world] for rank, part in parts.items()] for name, parts in own_parts.items()}
        )
        complete = []
        for name in {name for reported in gathered for name in reported}:
            pairs = [pair for reported in gathered for pair in reported.get(name, ())]
            if {rank for rank, _ in pairs} == set(range(pairs[0][1])):
                complete.append((*self._checkpoint_folder.split(name), name))
        if not complete:
            return None
        name = max(complete)[-1]
        texts = self._gather_json({str(rank): part.text().decode() for rank, part in own_parts.get(name, {}).items()})
        parts = {int(rank): parse_manifest(text.encode()) for reported in texts for rank, text in reported.items()}
        holders = {int(rank): holder for holder in reversed(range(self._world)) for rank in texts[holder]}
        sources = {file: holders[rank] for rank, part in sorted(parts.items()) for file in part.files}
        return MemoryCheckpoint(merge_manifests(part for _, part in sorted(parts.items())), sources)

    def fetch(
        self, checkpoint: MemoryCheckpoint, targets: Mapping[str, torch.Tensor], *, strict: bool = True
    ) -> list[PieceNeed] | None:
        """Bring the pieces that this rank needs to its folder, all ranks together; None when one is not what it was."""
        needed = list_needs(checkpoint.manifest, targets, strict=strict)
        files = {need.piece.file for need in needed}
        self._checkpoint_folder.make()
        for path in self._root.glob("*/pieces/*"):
            if path.name in files and not (self._checkpoint_folder.pieces / path.name).exists():
                os.link(path, self._checkpoint_folder.pieces / path.name)
        missing = sorted(files - list_names(self._checkpoint_folder.pieces))
        sends = []
        for rank, requested in enumerate(self._gather_json(missing)):
            for file in requested:
                if checkpoint.sources[file] == self._rank:
                    path = next(self._root.glob(f"*/pieces/{file}"))
                    sends.append(self._send_tensor(_map_file(path, path.stat().st_size), rank, _PIECE_TAG))
        for file in missing:
            self._receive_piece(file, checkpoint.manifest.files[file], checkpoint.sources[file])
        _wait_for_sends(sends)
        return (
            None
            if find_damaged_piece(self._checkpoint_folder.pieces, files, self._io_pool, self._writer.known)
            else needed
        )

    def load(self, needed: Sequence[PieceNeed]) -> None:
        """Fill tensors with what was fetched."""
        fill_tensors(self._checkpoint_folder.pieces, needed, self._io_pool)

    def close(self, *, job_done: bool) -> None:
        """When the job is done its memory is given back; else it is left for the next attempt."""
        self._io_pool.shutdown()
        if job_done:
            shutil.rmtree(self._checkpoint_folder.path, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._root.rmdir()

    def _exchange_parts(self, save_id: SaveId, own_manifest: CheckpointManifest) -> None:
        text = torch.frombuffer(bytearray(own_manifest.text()), dtype=torch.uint8)
        sends = [
            self._send_tensor(torch.tensor([len(text)]), self._partner, _MANIFEST_TAG),
            self._send_tensor(text, self._partner, _MANIFEST_TAG),
        ]
        partner_parts = {rank: self._receive_manifest(rank) for rank in self._partner_of}
        present, missing_files = list_names(self._checkpoint_folder.pieces), dict[int, list[str]]()
        for rank, part in partner_parts.items():
            missing_files[rank] = [file for file in sorted(part.files) if file not in present]
            request_mask = torch.tensor([file not in present for file in sorted(part.files)] or [False])
            sends.append(self._send_tensor(request_mask, rank, _REQUEST_TAG))
            present |= set(part.files)
        request_mask = torch.zeros(max(1, len(own_manifest.files)), dtype=torch.bool)
        dist.recv(request_mask, self._partner, self._group, _REQUEST_TAG)
        for is_requested, (file, size) in zip(request_mask.tolist(), sorted(own_manifest.files.items()), strict=False):
            if is_requested:
                sends.append(
                    self._send_tensor(_map_file(self._checkpoint_folder.pieces / file, size), self._partner, _PIECE_TAG)
                )
        for rank, part in partner_parts.items():
            for file in missing_files[rank]:
                self._receive_piece(file, part.files[file], rank)
            write_durable(self._checkpoint_folder.part(save_id) / f"{rank}.json", part.text())
        _wait_for_sends(sends)

    def _receive_manifest(self, rank: int) -> CheckpointManifest:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, rank, self._group, _MANIFEST_TAG)
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(text, rank, self._group, _MANIFEST_TAG)
        return parse_manifest(text.numpy().tobytes())

    def _send_tensor(self, tensor: torch.Tensor, rank: int, tag: int) -> tuple[Any, torch.Tensor]:
        return dist.isend(tensor, rank, self._group, tag), tensor  # which must live until it is sent

    def _receive_piece(self, file: str, size: int, rank: int) -> None:
        draft = self._checkpoint_folder.pieces / f".{file}"
        dist.recv(_map_file(draft, size), rank, self._group, _PIECE_TAG)
        draft.rename(self._checkpoint_folder.pieces / file)

    def _gather_json(self, value: Any) -> list[Any]:
        """What every rank says, as JSON."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._world)]
        dist.all_gather(sizes, torch.tensor([len(data)]), self._group)
        longest = max(map(int, sizes))
        rows = [torch.empty(longest, dtype=torch.uint8) for _ in range(self._world)]
        dist.all_gather(rows, torch.nn.functional.pad(data, (0, longest - len(data))), self._group)
        return [json.loads(row[: int(size)].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def _read_parts(self) -> dict[str, dict[int, CheckpointManifest]]:
        """What this node has, by turn and rank."""
        parts_by_name: dict[str, dict[int, CheckpointManifest]] = {}
        for path in self._root.glob("*/parts/*/*.json"):
            with contextlib.suppress(OSError, FalajError):
                part = parse_manifest(path.read_bytes())
                if not CheckpointFolder(path.parents[2], "").lacking(part.files):
                    parts_by_name.setdefault(path.parent.name, {})[int(path.stem)] = part
        return parts_by_name

    def _forget_older(self, newest_name: str) -> None:
        for name in list_names(self._checkpoint_folder.parts) - {newest_name}:
            shutil.rmtree(self._checkpoint_folder.parts / name, ignore_errors=True)
        texts = (path.read_bytes() for path in (self._checkpoint_folder.parts / newest_name).glob("*.json"))
        needed = {file for text in texts for file in parse_manifest(text).files}
        for name in list_names(self._checkpoint_folder.pieces) - needed:
            (self._checkpoint_folder.pieces / name).unlink()
        own_ranks = {str(rank) for rank, node in enumerate(self._nodes) if node == self._nodes[self._rank]}
        for name in list_names(self._root) - own_ranks:
            shutil.rmtree(self._root / name, ignore_errors=True)


def find_partner(rank: int, nodes: Sequence[int]) -> int:
    """Who keeps a copy for it: the one in its place on the next node; itself when there is one node only."""
    node_order = list(dict.fromkeys(nodes))
    members = {node: [other for other, rank_node in enumerate(nodes) if rank_node == node] for node in node_order}
    next_members = members[node_order[(node_order.index(nodes[rank]) + 1) % len(node_order)]]
    return rank if len(node_order) == 1 else next_members[members[nodes[rank]].index(rank) % len(next_members)]


def _map_file(path: Path, size: int) -> torch.Tensor:
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def _wait_for_sends(sends: Sequence[tuple[Any, torch.Tensor]]) -> None:
    for work, _ in sends:
        work.wait()
