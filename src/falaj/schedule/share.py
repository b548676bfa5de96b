"""The tree of queues: what each uses, what it may use, how needy it is, and what it deserves.

A queue is promised its guarantee and may borrow what others leave; borrowing is shared by dominant resource and weight,
level by level. A promise to a child is a promise of its parent, so a guarantee on a leaf alone is enough.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from falaj.core.errors import Corrupt, Invalid
from falaj.schedule.filling import FINE, Amounts, fill
from falaj.schedule.model import CRITICAL, Queue
from falaj.schedule.promises import ONE, brought

Row = Sequence[int]
"""An amount of each quota of a tree."""

_MOST = 1 << 40
_LARGEST = 1 << 38
_HEAVIEST = 1 << 14


class Tree:
    """Queues in rows: parents before children, siblings by name. Above all stands one row more, `top`: the capacity."""

    def __init__(self, queues: Sequence[Queue], capacity: Mapping[str, int]) -> None:
        self.quotas = tuple(capacity)
        self.capacity = [min(int(capacity[quota]), _LARGEST) for quota in self.quotas]
        known = {queue.name: queue for queue in queues}
        for queue in queues:
            for end in (at for at, letter in enumerate(queue.name) if letter == "/"):
                known.setdefault(queue.name[:end], Queue(queue.name[:end], top_band=CRITICAL, ask_band=CRITICAL))
        self.names = tuple(sorted(known, key=lambda name: (name.count("/"), name.split("/"))))
        self.index = {name: row for row, name in enumerate(self.names)}
        self.top = len(self.names)
        self.queues = [known[name] for name in self.names]
        self.parent = [self.index.get(name.rpartition("/")[0], self.top) for name in self.names]
        self.children: list[list[int]] = [[] for _ in range(self.top + 1)]
        for row, parent in enumerate(self.parent):
            self.children[parent].append(row)
        self.paths = [self._path(row) for row in range(self.top)]
        self.weight = [min(max(queue.weight, 1), _HEAVIEST) for queue in self.queues]
        self.usage = [[0] * len(self.quotas) for _ in range(self.top + 1)]
        self.limit = [[queue.limit.get(quota, _MOST) for quota in self.quotas] for queue in self.queues]
        self.limit.append(self.capacity)
        self.guarantee = self._promises(self._guarantee)
        self._kept = self._promises(self._keep)
        self._keepers = any(self._kept[-1])
        self.bounded = self._keepers or any(queue.limit for queue in self.queues)
        """May anybody be refused anything?"""
        # A row claims what lies below it (its use; of an inner one, its children's claims) and at least what it keeps.
        self._below = [self._sum(rows, self._kept) for rows in self.children]
        self.spent = [queue.usage for queue in self.queues]
        for row in reversed(range(self.top)):
            if self.parent[row] < self.top:
                self.spent[self.parent[row]] += self.spent[row]
        self._arrays()

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
        for at in (*self.paths[row], self.top):
            used = self.usage[at]
            for quota, part in enumerate(change):
                used[quota] += part
                if used[quota] < 0:
                    raise Corrupt(f"{queue} gives back more {self.quotas[quota]} than it took", "build the tree anew")
        for at, more in self._claims(row, change) if self._keepers else ():
            self._below[at] = [below + part for below, part in zip(self._below[at], more, strict=True)]

    def refusal(self, queue: str, amount: Iterable[int]) -> tuple[str, str, int] | None:
        """None if its quotas let it have so much more; else whose does not, which quota, and how much is missing.

        A queue on its own path stands for its limit; any other one keeps its guarantee for itself.
        """
        row = self.leaf(queue)
        change = [int(part) for part in amount]
        for at in self.paths[row]:
            used, limit = self.usage[at], self.limit[at]
            for quota, part in enumerate(change):
                if part and used[quota] + part > limit[quota]:
                    return self.names[at], self.quotas[quota], used[quota] + part - limit[quota]
        return self._kept_back(row, change) if self._keepers else None

    def _kept_back(self, row: int, change: list[int]) -> tuple[str, str, int] | None:
        """Who keeps what it needs, where there would be enough if nobody did."""
        for at, more in self._claims(row, change):
            for quota, part in enumerate(more):
                ceiling = min(self.limit[at][quota], self.capacity[quota])
                over = self._below[at][quota] + part - ceiling
                if part <= 0 or over <= 0 or self.usage[at][quota] + change[quota] > ceiling:
                    continue
                return self.names[self._keeper(row, at, quota)], self.quotas[quota], over
        return None

    def _keeper(self, row: int, until: int, quota: int) -> int:
        """Who keeps most that it does not use, of all beside a path up to one of its rows; not whoever stands above it
        and keeps it for its sake."""
        path = [*self.paths[row], self.top]
        above = path[: path.index(until) + 1]
        rows = [other for at in above for other in self.children[at] if other not in path]
        most = max(rows, key=lambda other: (self._claim(other, quota) - self.usage[other][quota], -other))
        while self._below[most][quota] >= self._kept[most][quota] and self.children[most]:
            rows = self.children[most]
            most = max(rows, key=lambda other: (self._claim(other, quota) - self.usage[other][quota], -other))
        return most

    def _claims(self, row: int, change: list[int]) -> list[tuple[int, list[int]]]:
        """By how much what lies below each row of the path grows, as the leaf's use does."""
        out = []
        for at in self.paths[row]:
            out.append((at, change))
            below, kept = self._below[at], self._kept[at]
            change = [
                max(keep, part + more) - max(keep, part) for keep, part, more in zip(kept, below, change, strict=True)
            ]
        return [*out, (self.top, change)]

    def _claim(self, row: int, quota: int) -> int:
        return max(self._kept[row][quota], self._below[row][quota])

    # how needy

    def level(self, row: int, more: Row) -> int:
        """Its weighted share with so much more: at most 0 within its guarantee, else what it borrows by weight."""
        borrowed, fraction, held = 0, -ONE, False
        for used, part, promised, whole in zip(self.usage[row], more, self.guarantee[row], self.capacity, strict=True):
            if used + part > promised:
                borrowed = max(borrowed, 1, ((used + part - promised) * ONE << FINE) // max(whole, 1))
            elif promised:
                held, fraction = True, max(fraction, (used + part) * ONE // promised - ONE)
        return borrowed // self.weight[row] + 1 if borrowed else fraction if held else 0

    def deserved(self, demand: Amounts) -> Amounts:
        """What each row deserves [rows, quotas], given what its leaves run and wait for.

        From the top down: each child what it wants of its guarantee; then what is left by weighted progressive filling
        of what is borrowed; then the same inside it with what it got. What a queue does not lend stays aside. A queue
        stops when one thing its leaves want is used up; leaves that do not want that share what it leaves, again.
        """
        want = np.where(self._leaves[:, None], np.minimum(demand, _MOST), 0)
        given = self._divided(want, np.zeros((self.top + 1, len(self.quotas)), np.int64), self._promised)
        for _ in self.quotas[1:]:
            rest = np.where(self._leaves[:, None], want - given[:-1], 0)
            full = given[-1] + (given[-1] >> 10) >= np.array(self.capacity)
            rest[((rest > 0) & full).any(axis=1)] = 0
            more = self._divided(rest, given, np.zeros_like(rest)) if rest.any() else given[:0]
            if not more.any():
                break
            given += more
        return given[: self.top]

    def promised(self, demand: Amounts) -> Amounts:
        """The same without what is borrowed: what nobody may take."""
        if not any(self.guarantee[-1]) and not self._keepers:
            return np.zeros((self.top, len(self.quotas)), np.int64)
        want = np.where(self._leaves[:, None], np.minimum(demand, _MOST), 0)
        none = np.zeros((self.top + 1, len(self.quotas)), np.int64)
        got = self._divided(want, none, self._due(want), borrow=False)
        return got[: self.top]

    def _due(self, want: Amounts) -> Amounts:
        """What each row is promised as things are wanted: its own guarantee, or what its children want of theirs.

        What one of them leaves of its guarantee is promised to nobody else, or it could not have it back from them.
        """
        due, claim = self._own.copy(), want.copy()
        for rows, above, _, start in reversed(self._levels):
            claim[rows] = np.minimum(np.maximum(claim[rows], self._keeps[rows]), self._limits[rows])
            if above[0] != self.top:
                base = np.minimum(claim[rows], np.maximum(due[rows], self._keeps[rows]))
                due[above] = np.maximum(due[above], np.add.reduceat(base, start))
                claim[above] = np.add.reduceat(claim[rows], start)
        return due

    def _divided(self, want: Amounts, given: Amounts, promised: Amounts, borrow: bool = True) -> Amounts:
        """What each row and the top get of what their leaves want, beside what is given already."""
        capacity = np.array(self.capacity, np.int64)
        limits, keeps = self._limits - given[:-1], self._keeps - given[:-1]
        claim = np.concatenate([want, capacity[None]])
        for rows, above, _, start in reversed(self._levels):
            claim[rows] = np.minimum(np.maximum(claim[rows], keeps[rows]), limits[rows])
            claim[above] = np.add.reduceat(claim[rows], start)
        claim[-1] = capacity - given[-1]
        for rows, above, group, start in self._levels:
            base = np.minimum(claim[rows], np.maximum(promised[rows], keeps[rows]))
            short = (np.add.reduceat(base, start) > claim[above]).any(axis=0)
            if short.any():
                base = _rationed(base, self._promised[rows], group, claim[above], np.flatnonzero(short))
            if borrow or above[0] != self.top:
                room = claim[above] - np.add.reduceat(base, start)
                base = base + fill(claim[rows] - base, self._weights[rows], group, room, capacity)
            claim[rows] = base
        got: Amounts = np.minimum(claim, np.concatenate([want, capacity[None]]))
        for rows, above, _, start in reversed(self._levels):
            got[above] = np.add.reduceat(got[rows], start)
        return got

    # how it is built

    def _arrays(self) -> None:
        shape = self.top, len(self.quotas)
        own = [*map(self._guarantee, self.queues)]
        self._limits, self._promised, self._own, self._keeps = (
            np.array(table[: self.top], np.int64).reshape(shape)
            for table in (self.limit, self.guarantee, own, self._kept)
        )
        self._weights = np.array(self.weight, np.int64)
        self._leaves = np.array([not rows for rows in self.children[:-1]], bool)
        depth = np.array([len(path) for path in self.paths], np.int64)
        parent = np.array(self.parent, np.int64)
        self._levels: list[tuple[Amounts, Amounts, Amounts, Amounts]] = []
        """From the top down: its rows, their parents, which of these each row has, and the first row of each parent."""
        for at in range(1, int(depth.max(initial=0)) + 1):
            rows = np.flatnonzero(depth == at)
            above, start, group = np.unique(parent[rows], return_index=True, return_inverse=True)
            self._levels.append((rows, above, group, start))

    def _path(self, row: int) -> tuple[int, ...]:
        path = [row]
        while self.parent[path[-1]] != self.top:
            path.append(self.parent[path[-1]])
        return tuple(path)

    def _sum(self, rows: list[int], amounts: list[list[int]]) -> list[int]:
        return [sum(amounts[row][quota] for row in rows) for quota in range(len(self.quotas))]

    def _promises(self, of: Callable[[Queue], list[int]]) -> list[list[int]]:
        """An amount of each queue, at least the sum of its children's; the last row is the top's."""
        out = [*map(of, self.queues), [0] * len(self.quotas)]
        for row in (*reversed(range(self.top)), self.top):
            out[row] = [max(pair) for pair in zip(out[row], self._sum(self.children[row], out), strict=True)]
        return out

    def _guarantee(self, queue: Queue) -> list[int]:
        """Its guarantee and what goes along."""
        return [*brought(queue.guarantee, dict(zip(self.quotas, self.capacity, strict=True))).values()]

    def _keep(self, queue: Queue) -> list[int]:
        """What it does not lend of its guarantee."""
        promised = [queue.guarantee.get(quota, 0) for quota in self.quotas]
        return [max(most - queue.lend.get(quota, most), 0) for quota, most in zip(self.quotas, promised, strict=True)]


def _rationed(base: Amounts, promised: Amounts, group: Amounts, room: Amounts, short: Amounts) -> Amounts:
    """Of what is promised more than there is: the same part of every promise, and what some leave to the rest."""
    out = base.copy()
    for quota in short:
        column = slice(quota, quota + 1)
        most = max(int(promised[:, quota].max(initial=0)), 1)
        weight = np.maximum(promised[:, quota] * _HEAVIEST // most, 1)
        whole = np.maximum(most, room[:, column].max(axis=0))
        out[:, column] = fill(base[:, column], weight, group, room[:, column], whole)
    return out
