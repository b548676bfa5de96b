"""What makes taking things back lawful, and keeps it from ever going in circles.

Every leaf has two satisfactions between nothing and ONE: how much of what it is promised it has, and how much of what
it deserves, both in the quota where that is most. The potential of a state is the rising list of the first, then that
of the second: it improves when the first place where the lists differ holds more. What leaves want does not change by
starting or stopping anything, so nor do these measures; a start never lowers a list, and whoever takes back must raise
one. With nothing from outside, a state that was left can therefore not come again.

So that bands and widths fit in, there is one potential for each band, of it and those above, with every job counted at
its smallest width; the higher band's counts first. Best effort and width beyond the smallest count last of all.
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from falaj.schedule.filling import Amounts
from falaj.schedule.promises import ONE
from falaj.schedule.share import Row, Tree

Change = tuple[int, Row, Row]
"""A leaf's row, what it used, what it would use."""


class Potential:
    """Promises and deserts of the leaves of a tree, as long as what they want stays the same.

    Each is worked out when somebody asks for it: most who are blocked need to know of promises only.
    """

    def __init__(self, tree: Tree, demand: Amounts) -> None:
        self._tree, self._demand = tree, demand
        self.slack = [1 + (part >> 18) for part in tree.capacity]
        """What rounding may cost."""

    @cached_property
    def promised(self) -> Amounts:
        """What nobody may take from each."""
        return self._tree.promised(self._demand)

    @cached_property
    def deserved(self) -> Amounts:
        """What each should have."""
        return self._tree.deserved(self._demand)

    @cached_property
    def _marks(self) -> list[list[tuple[int, int]]]:
        """Of both, each leaf's most important quota and how much of it."""
        whole = np.maximum(np.array(self._tree.capacity, np.int64), 1)
        return [
            list(zip(most.tolist(), table[np.arange(len(table)), most].tolist(), strict=True))
            for table in (self.promised, self.deserved)
            for most in (((table * ONE) // whole).argmax(axis=1),)
        ]

    def cause(self, row: int, used: Row, more: Row) -> str:
        """By what right a leaf that uses so much may take back so much more: guarantee, share or none."""
        if self.owes(row, used, more):
            return "guarantee"
        return "share" if self._within(self.deserved[row].tolist(), used, more) else ""

    def owes(self, row: int, used: Row, more: Row) -> bool:
        """Is so much more promised to a leaf that uses so much?"""
        return self._within(self.promised[row].tolist(), used, more)

    def spare(self, cause: str, used: Amounts) -> tuple[Amounts, Amounts]:
        """Each leaf's most important quota, and how much of it is above what that cause leaves to it."""
        marks = np.array(self._marks[0 if cause == "guarantee" else 1], np.int64).reshape(-1, 2)
        have = used[np.arange(len(used)), marks[:, 0]]
        slack = np.where(marks[:, 1] > 0, np.array(self.slack)[marks[:, 0]], 0)
        return marks[:, 0], np.maximum(have - marks[:, 1] + slack, 0)

    def guaranteed(self) -> Amounts:
        """What each leaf may use by its guarantee, by quota, with what rounding may cost."""
        return self._guaranteed

    @cached_property
    def _guaranteed(self) -> Amounts:
        return np.where(self.promised > 0, self.promised + np.array(self.slack), 0)

    def keeps(self, row: int, after: Row) -> bool:
        """True when a leaf that uses so much has all it is promised."""
        return self._satisfied(0, row, after) == ONE

    def improves(self, changes: Iterable[Change]) -> bool:
        """True when the state after these changes is strictly better. Leaves that stay as they are cancel out."""
        all_of_them = list(changes)
        before = [sorted(self._satisfied(which, row, was) for row, was, _ in all_of_them) for which in (0, 1)]
        after = [sorted(self._satisfied(which, row, then) for row, _, then in all_of_them) for which in (0, 1)]
        return after > before

    def _satisfied(self, which: int, row: int, used: Row) -> int:
        quota, mark = self._marks[which][row]
        mark = max(mark - self.slack[quota], 0)
        return min(used[quota] * ONE // mark, ONE) if mark else ONE

    def _within(self, most: Row, used: Row, more: Row) -> bool:
        return all(
            not part or (top and have + part <= top + slack)
            for part, have, top, slack in zip(more, used, most, self.slack, strict=True)
        )
