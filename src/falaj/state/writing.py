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

from falaj.state.files import Folder, Turn, put, sync
from falaj.state.format import Manifest
from falaj.state.snapshot import Snapshot

DIGEST = "sha256"
"""Twice as fast as blake2b where the processor has instructions for it, which all that train have."""


class Writer:
    """Writes the pieces of one rank."""

    def __init__(self, folder: Folder, rank: int, world: int, hands: ThreadPoolExecutor) -> None:
        self._folder, self._rank, self._world, self._hands = folder, rank, world, hands
        self.known: set[str] = set()
        """Pieces that this process wrote, or read and found right: what others left is written again, so that one that
        rotted is healed."""
        self._numbers = count()

    def write(self, turn: Turn, snapshot: Snapshot, meta: Mapping[str, Any]) -> Manifest:
        """Make a rank's part of a step durable. When that fails nothing of it stays."""
        part, fresh = self._folder.part(turn), list[str]()
        try:
            self._folder.make()
            part.mkdir(exist_ok=True)
            packs = snapshot.ready()
            made = [self._hands.submit(self._piece, part, pack.memory, fresh) for pack in packs]
            wait(made)
            files = [one.result() for one in made]
            sync(self._folder.pieces)
            sizes = {file: len(pack.memory) for file, pack in zip(files, packs, strict=True)}
            meta = meta if self._rank == 0 else {}
            whole = Manifest(turn.step, self._world, meta, snapshot.told(files), sizes)
            put(part / f"{self._rank}.json", whole.text())
        except BaseException:
            self._undo(part, fresh)
            raise
        self.known = set(files)
        return whole

    def _piece(self, part: Path, memory: torch.Tensor, fresh: list[str]) -> str:
        data = memoryview(memory.numpy())  # type: ignore[arg-type]
        digest = hashlib.new(DIGEST, data).hexdigest()
        # Said before it is there, or found there: who sweeps lists the pieces first and reads the claims then.
        with (part / f"{self._rank}.list").open("a") as claims:
            claims.write(f"{digest}\n")
        path = self._folder.pieces / digest
        if digest in self.known and not self._folder.lacking({digest: len(data)}):
            return digest
        new = self._folder.pieces / f".{self._folder.attempt}.{self._rank}.{next(self._numbers)}"
        try:
            with new.open("wb") as out:
                out.write(data)
                out.flush()
                os.fdatasync(out.fileno())
            if not path.exists():
                fresh.append(digest)
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        self.known.add(digest)
        return digest

    def _undo(self, part: Path, fresh: list[str]) -> None:
        self.known.difference_update(fresh)
        with contextlib.suppress(OSError):
            for digest in fresh:
                (self._folder.pieces / digest).unlink(missing_ok=True)
            (part / f"{self._rank}.failed").touch()
