"""How much asks like nodes, kept by node: when an ask comes again, only nodes that moved since are looked at anew."""

import numpy as np

from falaj.schedule.node_states import NodeStateTable
from falaj.schedule.node_types import Ints

_MAX_SCORES = 1 << 23
"""So many scores are kept; 64 MiB."""


class NodeScoreCache:
    """Scores of all nodes by ask, and when each node last moved."""

    def __init__(self, columns: NodeStateTable) -> None:
        self._states = columns
        self._scores: dict[int, tuple[Ints, int]] = {}
        """By ask, the one asked for last at the end: scores by node, and how many moves they know of."""
        self._moved_at: Ints = np.zeros(0, np.int64)
        self._move_count = 0
        self._version = -1

    def clear(self, size: int) -> None:
        """There are so many nodes, and nothing is known of any."""
        self._scores.clear()
        self._moved_at = np.zeros(size, np.int64)

    def move(self, row: int) -> None:
        """A node is in another state."""
        self._move_count += 1
        self._moved_at[row] = self._move_count

    def scores(self, request_number: int, state: Ints) -> Ints:
        """How much an ask likes all nodes, which are in these states; whoever changes that copies it first."""
        version = self._states.score(request_number)
        if version != self._version:
            self._version = version
            self._scores.clear()
        cached = self._scores.pop(request_number, None)
        if cached is None:
            scores = self._states.scores(request_number, state)
            if self._scores and (len(self._scores) + 1) * len(state) > _MAX_SCORES:
                del self._scores[next(iter(self._scores))]
        else:
            scores = cached[0]
            rows = np.flatnonzero(self._moved_at > cached[1])
            scores[rows] = self._states.scores(request_number, state.take(rows))
        self._scores[request_number] = scores, self._move_count
        return scores
