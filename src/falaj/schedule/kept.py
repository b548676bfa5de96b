"""How much asks like nodes, kept by node: when an ask comes again, only nodes that moved since are looked at anew."""

import numpy as np

from falaj.schedule.columns import Columns
from falaj.schedule.traits import Ints

_MOST = 1 << 23
"""So many scores are kept; 64 MiB."""


class Kept:
    """Scores of all nodes by ask, and when each node last moved."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._scores: dict[int, tuple[Ints, int]] = {}
        """By ask, the one asked for last at the end: scores by node, and how many moves they know of."""
        self._moved: Ints = np.zeros(0, np.int64)
        self._moves = 0
        self._version = -1

    def clear(self, size: int) -> None:
        """There are so many nodes, and nothing is known of any."""
        self._scores.clear()
        self._moved = np.zeros(size, np.int64)

    def move(self, row: int) -> None:
        """A node is in another state."""
        self._moves += 1
        self._moved[row] = self._moves

    def scores(self, ask: int, state: Ints) -> Ints:
        """How much an ask likes all nodes, which are in these states; whoever changes that copies it first."""
        version = self._columns.score(ask)
        if version != self._version:
            self._version = version
            self._scores.clear()
        known = self._scores.pop(ask, None)
        if known is None:
            scores = self._columns.scores(ask, state)
            if self._scores and (len(self._scores) + 1) * len(state) > _MOST:
                del self._scores[next(iter(self._scores))]
        else:
            scores = known[0]
            rows = np.flatnonzero(self._moved > known[1])
            scores[rows] = self._columns.scores(ask, state.take(rows))
        self._scores[ask] = scores, self._moves
        return scores
