"""The tree of queues: what each uses, what it may use, how needy it is, and what it deserves.

A queue is promised its guarantee and may borrow what others leave; borrowing is shared by dominant resource and weight,
level by level. A promise to a child is a promise of its parent, so a guarantee on a leaf alone is enough.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from falaj.core.errors import CorruptData, Invalid
from falaj.schedule.guarantees import FULL_SHARE, expand_guarantee
from falaj.schedule.model import CRITICAL, Queue
from falaj.schedule.progressive_filling import SHARE_BITS, Amounts, fill_progressively

QuotaRow = Sequence[int]
"""An amount of each quota of a tree."""

_UNLIMITED = 1 << 40
_MAX_CAPACITY = 1 << 38
_MAX_WEIGHT = 1 << 14


class ShareTree:
    """Queues in rows: parents before children, siblings by name. Above all stands one row more, `top`: the capacity."""

    def __init__(self, queues: Sequence[Queue], capacity: Mapping[str, int]) -> None:
        self.quotas = tuple(capacity)
        self.capacity = [min(int(capacity[quota]), _MAX_CAPACITY) for quota in self.quotas]
        by_name = {queue.name: queue for queue in queues}
        for queue in queues:
            for end in (position for position, letter in enumerate(queue.name) if letter == "/"):
                by_name.setdefault(queue.name[:end], Queue(queue.name[:end], top_band=CRITICAL, ask_band=CRITICAL))
        self.names = tuple(sorted(by_name, key=lambda name: (name.count("/"), name.split("/"))))
        self.index = {name: row for row, name in enumerate(self.names)}
        self.top = len(self.names)
        self.queues = [by_name[name] for name in self.names]
        self.parent = [self.index.get(name.rpartition("/")[0], self.top) for name in self.names]
        self.children: list[list[int]] = [[] for _ in range(self.top + 1)]
        for row, parent in enumerate(self.parent):
            self.children[parent].append(row)
        self.paths = [self._find_path_to_root(row) for row in range(self.top)]
        self.weight = [min(max(queue.weight, 1), _MAX_WEIGHT) for queue in self.queues]
        self.usage = [[0] * len(self.quotas) for _ in range(self.top + 1)]
        self.limit = [[queue.limit.get(quota, _UNLIMITED) for quota in self.quotas] for queue in self.queues]
        self.limit.append(self.capacity)
        self.guarantee = self._build_promise_table(self._expand_guarantee)
        self._kept_rows = self._build_promise_table(self._compute_kept_amounts)
        self._has_keepers = any(self._kept_rows[-1])
        self.bounded = self._has_keepers or any(queue.limit for queue in self.queues)
        """May anybody be refused anything?"""
        # A row claims what lies below it (its use; of an inner one, its children's claims) and at least what it keeps.
        self._claimed_below = [self._sum_rows(rows, self._kept_rows) for rows in self.children]
        self.spent = [queue.usage for queue in self.queues]
        for row in reversed(range(self.top)):
            if self.parent[row] < self.top:
                self.spent[self.parent[row]] += self.spent[row]
        self._build_arrays()

    def leaf(self, queue: str) -> int:
        """Its row."""
        row = self.index.get(queue)
        if row is None or self.children[row]:
            raise Invalid(f"{queue} is no queue that jobs wait in", "name a leaf of the tree: falaj queues list")
        return row

    # what is used

    def charge(self, queue: str, amount: Iterable[int], sign: int = 1) -> None:
        """Count an amount (by quota) for a leaf and all above it; -1 takes it off."""
        row = self.leaf(queue)
        change = [sign * int(part) for part in amount]
        change += [0] * (len(self.quotas) - len(change))
        for path_row in (*self.paths[row], self.top):
            used_amounts = self.usage[path_row]
            for quota, part in enumerate(change):
                used_amounts[quota] += part
                if used_amounts[quota] < 0:
                    raise CorruptData(
                        f"{queue} gives back more {self.quotas[quota]} than it took", "build the tree anew"
                    )
        for path_row, growth in self._compute_claim_growth(row, change) if self._has_keepers else ():
            self._claimed_below[path_row] = [
                claimed + part for claimed, part in zip(self._claimed_below[path_row], growth, strict=True)
            ]

    def refusal(self, queue: str, amount: Iterable[int]) -> tuple[str, str, int] | None:
        """None if its quotas let it have so much more; else whose does not, which quota, and how much is missing.

        A queue on its own path stands for its limit; any other one keeps its guarantee for itself.
        """
        row = self.leaf(queue)
        change = [int(part) for part in amount]
        for path_row in self.paths[row]:
            used_amounts, limit = self.usage[path_row], self.limit[path_row]
            for quota, part in enumerate(change):
                if part and used_amounts[quota] + part > limit[quota]:
                    return self.names[path_row], self.quotas[quota], used_amounts[quota] + part - limit[quota]
        return self._find_kept_back(row, change) if self._has_keepers else None

    def _find_kept_back(self, row: int, change: list[int]) -> tuple[str, str, int] | None:
        """Who keeps what it needs, where there would be enough if nobody did."""
        for path_row, growth in self._compute_claim_growth(row, change):
            for quota, part in enumerate(growth):
                ceiling = min(self.limit[path_row][quota], self.capacity[quota])
                excess = self._claimed_below[path_row][quota] + part - ceiling
                if part <= 0 or excess <= 0 or self.usage[path_row][quota] + change[quota] > ceiling:
                    continue
                return self.names[self._find_keeper(row, path_row, quota)], self.quotas[quota], excess
        return None

    def _find_keeper(self, row: int, until_row: int, quota: int) -> int:
        """Who keeps most that it does not use, of all beside a path up to one of its rows; not whoever stands above it
        and keeps it for its sake."""
        path = [*self.paths[row], self.top]
        path_above = path[: path.index(until_row) + 1]
        rows = [other for path_row in path_above for other in self.children[path_row] if other not in path]
        keeper = max(rows, key=lambda other: (self._get_claim(other, quota) - self.usage[other][quota], -other))
        while self._claimed_below[keeper][quota] >= self._kept_rows[keeper][quota] and self.children[keeper]:
            rows = self.children[keeper]
            keeper = max(rows, key=lambda other: (self._get_claim(other, quota) - self.usage[other][quota], -other))
        return keeper

    def _compute_claim_growth(self, row: int, change: list[int]) -> list[tuple[int, list[int]]]:
        """By how much what lies below each row of the path grows, as the leaf's use does."""
        growths = []
        for path_row in self.paths[row]:
            growths.append((path_row, change))
            claimed, kept_amounts = self._claimed_below[path_row], self._kept_rows[path_row]
            change = [
                max(kept_amount, part + growth) - max(kept_amount, part)
                for kept_amount, part, growth in zip(kept_amounts, claimed, change, strict=True)
            ]
        return [*growths, (self.top, change)]

    def _get_claim(self, row: int, quota: int) -> int:
        return max(self._kept_rows[row][quota], self._claimed_below[row][quota])

    # how needy

    def level(self, row: int, extra: QuotaRow) -> int:
        """Its weighted share with so much more: at most 0 within its guarantee, else what it borrows by weight."""
        borrowed, fraction, has_guarantee = 0, -FULL_SHARE, False
        for used, part, promised, capacity in zip(
            self.usage[row], extra, self.guarantee[row], self.capacity, strict=True
        ):
            if used + part > promised:
                borrowed = max(borrowed, 1, ((used + part - promised) * FULL_SHARE << SHARE_BITS) // max(capacity, 1))
            elif promised:
                has_guarantee, fraction = True, max(fraction, (used + part) * FULL_SHARE // promised - FULL_SHARE)
        return borrowed // self.weight[row] + 1 if borrowed else fraction if has_guarantee else 0

    def deserved(self, demand: Amounts) -> Amounts:
        """What each row deserves [rows, quotas], given what its leaves run and wait for.

        From the top down: each child what it wants of its guarantee; then what is left by weighted progressive filling
        of what is borrowed; then the same inside it with what it got. What a queue does not lend stays aside. A queue
        stops when one thing its leaves want is used up; leaves that do not want that share what it leaves, again.
        """
        demands = np.where(self._leaves[:, None], np.minimum(demand, _UNLIMITED), 0)
        divided = self._divide_amounts(
            demands, np.zeros((self.top + 1, len(self.quotas)), np.int64), self._promised_rows
        )
        for _ in self.quotas[1:]:
            unmet = np.where(self._leaves[:, None], demands - divided[:-1], 0)
            is_full = divided[-1] + (divided[-1] >> 10) >= np.array(self.capacity)
            unmet[((unmet > 0) & is_full).any(axis=1)] = 0
            second_share = self._divide_amounts(unmet, divided, np.zeros_like(unmet)) if unmet.any() else divided[:0]
            if not second_share.any():
                break
            divided += second_share
        return divided[: self.top]

    def promised(self, demand: Amounts) -> Amounts:
        """The same without what is borrowed: what nobody may take."""
        if not any(self.guarantee[-1]) and not self._has_keepers:
            return np.zeros((self.top, len(self.quotas)), np.int64)
        demands = np.where(self._leaves[:, None], np.minimum(demand, _UNLIMITED), 0)
        nothing_divided = np.zeros((self.top + 1, len(self.quotas)), np.int64)
        divided = self._divide_amounts(
            demands, nothing_divided, self._compute_due_promises(demands), allow_borrowing=False
        )
        return divided[: self.top]

    def _compute_due_promises(self, demands: Amounts) -> Amounts:
        """What each row is promised as things are wanted: its own guarantee, or what its children want of theirs.

        What one of them leaves of its guarantee is promised to nobody else, or it could not have it back from them.
        """
        promises, claim = self._own_guarantees.copy(), demands.copy()
        for rows, parents, _, start in reversed(self._levels):
            claim[rows] = np.minimum(np.maximum(claim[rows], self._kept_array[rows]), self._limits[rows])
            if parents[0] != self.top:
                base = np.minimum(claim[rows], np.maximum(promises[rows], self._kept_array[rows]))
                promises[parents] = np.maximum(promises[parents], np.add.reduceat(base, start))
                claim[parents] = np.add.reduceat(claim[rows], start)
        return promises

    def _divide_amounts(
        self, demands: Amounts, divided: Amounts, promised: Amounts, allow_borrowing: bool = True
    ) -> Amounts:
        """What each row and the top get of what their leaves want, beside what is given already."""
        capacity = np.array(self.capacity, np.int64)
        limits, keeps = self._limits - divided[:-1], self._kept_array - divided[:-1]
        claim = np.concatenate([demands, capacity[None]])
        for rows, parents, _, start in reversed(self._levels):
            claim[rows] = np.minimum(np.maximum(claim[rows], keeps[rows]), limits[rows])
            claim[parents] = np.add.reduceat(claim[rows], start)
        claim[-1] = capacity - divided[-1]
        for rows, parents, group, start in self._levels:
            base = np.minimum(claim[rows], np.maximum(promised[rows], keeps[rows]))
            is_short = (np.add.reduceat(base, start) > claim[parents]).any(axis=0)
            if is_short.any():
                base = _ration_promises(
                    base, self._promised_rows[rows], group, claim[parents], np.flatnonzero(is_short)
                )
            if allow_borrowing or parents[0] != self.top:
                room = claim[parents] - np.add.reduceat(base, start)
                base = base + fill_progressively(claim[rows] - base, self._weights[rows], group, room, capacity)
            claim[rows] = base
        shares: Amounts = np.minimum(claim, np.concatenate([demands, capacity[None]]))
        for rows, parents, _, start in reversed(self._levels):
            shares[parents] = np.add.reduceat(shares[rows], start)
        return shares

    # how it is built

    def _build_arrays(self) -> None:
        shape = self.top, len(self.quotas)
        guarantees = [*map(self._expand_guarantee, self.queues)]
        self._limits, self._promised_rows, self._own_guarantees, self._kept_array = (
            np.array(table[: self.top], np.int64).reshape(shape)
            for table in (self.limit, self.guarantee, guarantees, self._kept_rows)
        )
        self._weights = np.array(self.weight, np.int64)
        self._leaves = np.array([not rows for rows in self.children[:-1]], bool)
        depth = np.array([len(path) for path in self.paths], np.int64)
        parent = np.array(self.parent, np.int64)
        self._levels: list[tuple[Amounts, Amounts, Amounts, Amounts]] = []
        """From the top down: its rows, their parents, which of these each row has, and the first row of each parent."""
        for level in range(1, int(depth.max(initial=0)) + 1):
            rows = np.flatnonzero(depth == level)
            parents, start, group = np.unique(parent[rows], return_index=True, return_inverse=True)
            self._levels.append((rows, parents, group, start))

    def _find_path_to_root(self, row: int) -> tuple[int, ...]:
        path = [row]
        while self.parent[path[-1]] != self.top:
            path.append(self.parent[path[-1]])
        return tuple(path)

    def _sum_rows(self, rows: list[int], amounts: list[list[int]]) -> list[int]:
        return [sum(amounts[row][quota] for row in rows) for quota in range(len(self.quotas))]

    def _build_promise_table(self, amount_of: Callable[[Queue], list[int]]) -> list[list[int]]:
        """An amount of each queue, at least the sum of its children's; the last row is the top's."""
        table = [*map(amount_of, self.queues), [0] * len(self.quotas)]
        for row in (*reversed(range(self.top)), self.top):
            table[row] = [max(pair) for pair in zip(table[row], self._sum_rows(self.children[row], table), strict=True)]
        return table

    def _expand_guarantee(self, queue: Queue) -> list[int]:
        """Its guarantee and what goes along."""
        return [*expand_guarantee(queue.guarantee, dict(zip(self.quotas, self.capacity, strict=True))).values()]

    def _compute_kept_amounts(self, queue: Queue) -> list[int]:
        """What it does not lend of its guarantee."""
        promised = [queue.guarantee.get(quota, 0) for quota in self.quotas]
        return [
            max(guaranteed - queue.lend.get(quota, guaranteed), 0)
            for quota, guaranteed in zip(self.quotas, promised, strict=True)
        ]


def _ration_promises(base: Amounts, promised: Amounts, group: Amounts, room: Amounts, short_quotas: Amounts) -> Amounts:
    """Of what is promised more than there is: the same part of every promise, and what some leave to the rest."""
    rationed = base.copy()
    for quota in short_quotas:
        column = slice(quota, quota + 1)
        max_promised = max(int(promised[:, quota].max(initial=0)), 1)
        weight = np.maximum(promised[:, quota] * _MAX_WEIGHT // max_promised, 1)
        total = np.maximum(max_promised, room[:, column].max(axis=0))
        rationed[:, column] = fill_progressively(base[:, column], weight, group, room[:, column], total)
    return rationed
