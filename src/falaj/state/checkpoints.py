"""A folder of checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Found(NamedTuple):
    """A whole checkpoint."""

    step: int
    meta: Mapping[str, Any]
    path: str = ""


class Checkpoints:
    """Those of one job, as one of its ranks sees them. No method but `agree` speaks to other ranks."""

    def __init__(self, folder: Path, *, rank: int = 0, world: int = 1, keep: int = 3) -> None:
        self.folder, self.rank, self.world, self.keep = folder, rank, world, keep

    def save(self, step: int, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> float:
        """Begin to save; gives how long the caller stood still. The tensors may change as soon as it returns.

        Tensors may be DTensors: each rank writes the pieces it has, and of copies one rank writes one.
        """
        del step, tensors, meta
        return 0.0

    def settle(self) -> int:
        """Wait until what was begun is durable; gives the newest step that is, -1 when none."""
        return -1

    def newest(self) -> Found | None:
        """The newest whole checkpoint whose bytes are what they were; the same for every rank that asks."""
        return None

    def load(self, found: Found, into: Mapping[str, torch.Tensor]) -> None:
        """Fill tensors with what was saved under their names, each rank the part it holds, however it was cut then."""

    def close(self) -> None:
        """Settle, and let go of buffers."""
