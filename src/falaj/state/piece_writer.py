"""Writing what a rank copied: pieces under the digest of their bytes, then the part that names them."""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path
from typing import Any

import torch

from falaj.state.checkpoint_folder import CheckpointFolder, SaveId, sync_folder, write_durable
from falaj.state.host_snapshot import HostSnapshot
from falaj.state.manifest import CheckpointManifest

DIGEST_NAME = "sha256"
"""Twice as fast as blake2b where the processor has instructions for it, which all that train have."""


class PieceWriter:
    """Writes the pieces of one rank."""

    def __init__(self, folder: CheckpointFolder, rank: int, world: int, io_pool: ThreadPoolExecutor) -> None:
        self._folder, self._rank, self._world, self._io_pool = folder, rank, world, io_pool
        self.known: set[str] = set()
        """Pieces that this process wrote, or read and found right: what others left is written again, so that one that
        rotted is healed."""
        self._numbers = count()

    def write(self, save_id: SaveId, snapshot: HostSnapshot, meta: Mapping[str, Any]) -> CheckpointManifest:
        """Make a rank's part of a step durable. When that fails nothing of it stays."""
        part_path, new_pieces = self._folder.part(save_id), list[str]()
        try:
            self._folder.make()
            part_path.mkdir(exist_ok=True)
            packs = snapshot.ready()
            futures = [self._io_pool.submit(self._write_piece, part_path, pack.memory, new_pieces) for pack in packs]
            wait(futures)
            files = [future.result() for future in futures]
            sync_folder(self._folder.pieces)
            sizes = {file: len(pack.memory) for file, pack in zip(files, packs, strict=True)}
            meta = meta if self._rank == 0 else {}
            manifest = CheckpointManifest(save_id.step, self._world, meta, snapshot.told(files), sizes)
            write_durable(part_path / f"{self._rank}.json", manifest.text())
        except BaseException:
            self._undo_part(part_path, new_pieces)
            raise
        self.known = set(files)
        return manifest

    def _write_piece(self, part_path: Path, memory: torch.Tensor, new_pieces: list[str]) -> str:
        data = memoryview(memory.numpy())  # type: ignore[arg-type]
        digest = hashlib.new(DIGEST_NAME, data).hexdigest()
        # Said before it is there, or found there: who sweeps lists the pieces first and reads the claims then.
        with (part_path / f"{self._rank}.list").open("a") as claims:
            claims.write(f"{digest}\n")
        path = self._folder.pieces / digest
        if digest in self.known and not self._folder.lacking({digest: len(data)}):
            return digest
        draft = self._folder.pieces / f".{self._folder.attempt}.{self._rank}.{next(self._numbers)}"
        try:
            with draft.open("wb") as out:
                out.write(data)
                out.flush()
                os.fdatasync(out.fileno())
            if not path.exists():
                new_pieces.append(digest)
            draft.rename(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        self.known.add(digest)
        return digest

    def _undo_part(self, part_path: Path, new_pieces: list[str]) -> None:
        self.known.difference_update(new_pieces)
        with contextlib.suppress(OSError):
            for digest in new_pieces:
                (self._folder.pieces / digest).unlink(missing_ok=True)
            (part_path / f"{self._rank}.failed").touch()
