"""How much an ask likes a state of a node, given what else is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from falaj.schedule.model import WHOLE, Ask, Node

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

NOWHERE = -(1 << 62)
"""The score of a state that an ask does not fit in."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Asks and states to be scored: arrays by ask, by state, by state and device, by all three."""

    need: Ints
    unit: Small
    per: Small
    types: Small
    free: Ints
    dev: Small
    kinds: npt.NDArray[np.int16]
    suits: Flags


class Mix:
    """What is asked for, by ask, and the scores that follow from it."""

    def __init__(self) -> None:
        self.weights: dict[Ask, int] = {}
        self.stale = True

    def add(self, ask: Ask, slots: int) -> None:
        """So many slots more (or fewer) of this ask are wanted."""
        self.weights[ask] = self.weights.get(ask, 0) + slots
        self.stale = True

    def weigh(self, types: Sequence[Node], kinds: Mapping[tuple[str, int], int], layout: npt.NDArray[np.int16]) -> bool:
        """Bring the tables up to date; True when scores are not what they were."""
        self.stale = False
        return False

    def scores(self, block: Scores, room: Ints) -> tuple[Ints, Ints]:
        """The score of each ask in each state, and what is left on the device a part is best cut from."""
        idle = np.maximum(block.dev, 0).sum(axis=1)
        scores = np.where(room > 0, -idle[None, :] * 1000 - block.free[:, 0] // 1000, NOWHERE)
        able = np.where(block.suits & (block.dev >= block.unit[:, None, None]), block.dev, WHOLE + 1)
        return scores, able.min(axis=2)
