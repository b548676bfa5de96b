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

from falaj.schedule.fair_share import QuotaRow, ShareTree
from falaj.schedule.guarantees import FULL_SHARE
from falaj.schedule.progressive_filling import Amounts

UsageChange = tuple[int, QuotaRow, QuotaRow]
"""A leaf's row, what it used, what it would use."""


class FairnessPotential:
    """Promises and deserts of the leaves of a tree, as long as what they want stays the same.

    Each is worked out when somebody asks for it: most who are blocked need to know of promises only.
    """

    def __init__(self, tree: ShareTree, demand: Amounts) -> None:
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
    def _key_quotas(self) -> list[list[tuple[int, int]]]:
        """Of both, each leaf's most important quota and how much of it."""
        capacity = np.maximum(np.array(self._tree.capacity, np.int64), 1)
        return [
            list(zip(key_quota.tolist(), table[np.arange(len(table)), key_quota].tolist(), strict=True))
            for table in (self.promised, self.deserved)
            for key_quota in (((table * FULL_SHARE) // capacity).argmax(axis=1),)
        ]

    def cause(self, row: int, used: QuotaRow, extra: QuotaRow) -> str:
        """By what right a leaf that uses so much may take back so much more: guarantee, share or none."""
        if self.owes(row, used, extra):
            return "guarantee"
        return "share" if self._is_within(self.deserved[row].tolist(), used, extra) else ""

    def owes(self, row: int, used: QuotaRow, extra: QuotaRow) -> bool:
        """Is so much more promised to a leaf that uses so much?"""
        return self._is_within(self.promised[row].tolist(), used, extra)

    def spare(self, cause: str, used: Amounts) -> tuple[Amounts, Amounts]:
        """Each leaf's most important quota, and how much of it is above what that cause leaves to it."""
        key_quotas = np.array(self._key_quotas[0 if cause == "guarantee" else 1], np.int64).reshape(-1, 2)
        used_amount = used[np.arange(len(used)), key_quotas[:, 0]]
        slack = np.where(key_quotas[:, 1] > 0, np.array(self.slack)[key_quotas[:, 0]], 0)
        return key_quotas[:, 0], np.maximum(used_amount - key_quotas[:, 1] + slack, 0)

    def guaranteed(self) -> Amounts:
        """What each leaf may use by its guarantee, by quota, with what rounding may cost."""
        return self._guaranteed_limits

    @cached_property
    def _guaranteed_limits(self) -> Amounts:
        return np.where(self.promised > 0, self.promised + np.array(self.slack), 0)

    def keeps(self, row: int, after: QuotaRow) -> bool:
        """True when a leaf that uses so much has all it is promised."""
        return self._compute_satisfaction(0, row, after) == FULL_SHARE

    def improves(self, changes: Iterable[UsageChange]) -> bool:
        """True when the state after these changes is strictly better. Leaves that stay as they are cancel out."""
        change_list = list(changes)
        before = [
            sorted(self._compute_satisfaction(measure, row, used_before) for row, used_before, _ in change_list)
            for measure in (0, 1)
        ]
        after = [
            sorted(self._compute_satisfaction(measure, row, used_after) for row, _, used_after in change_list)
            for measure in (0, 1)
        ]
        return after > before

    def _compute_satisfaction(self, measure: int, row: int, used: QuotaRow) -> int:
        quota, mark = self._key_quotas[measure][row]
        mark = max(mark - self.slack[quota], 0)
        return min(used[quota] * FULL_SHARE // mark, FULL_SHARE) if mark else FULL_SHARE

    def _is_within(self, limits: QuotaRow, used: QuotaRow, extra: QuotaRow) -> bool:
        return all(
            not part or (limit and used_amount + part <= limit + slack)
            for part, used_amount, limit, slack in zip(extra, used, limits, self.slack, strict=True)
        )
