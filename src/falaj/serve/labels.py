"""Late labels: what turned out to be true of a request, days later, and how good each arm was by them.

A label names a request by its id (the answer's header falaj-request), or all requests of a key that came before it.
What is joined is what the journal kept.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from falaj.core.data import dataclass
from falaj.core.ports import Block, Series
from falaj.core.ref import Ref
from falaj.serve.blocks import Blocks, Whose
from falaj.serve.bodies import outputs_of, rows_of
from falaj.serve.journal import PREFIX as JOURNAL
from falaj.serve.journal import Logged
from falaj.serve.judge import Tally
from falaj.store.ledger import Ledger

PREFIX = "serve.labels."
MATCH, ABSOLUTE, SQUARED, VALUE = "match", "absolute", "squared", "value"
HOW = (MATCH, ABSOLUTE, SQUARED, VALUE)
MOST_SCORED = 1_000_000
"""So many requests of a trial are judged by their quality, the first ones: what comes then changes nothing any more."""
_LATE_S, _TRIALS = 120.0, 64


class Labelled(NamedTuple):
    """The truth about one request (`id`), or about all requests of a key before `at`."""

    at: float
    id: str
    key: str
    value: float


class Scored(NamedTuple):
    """What a request answered, as far as its quality is concerned: one number a row."""

    at: float
    id: str
    key: str
    arm: str
    revision: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """How good an answer is, between 0 and 1.

    match: the output is the label (the largest of several scores; from half on, one score means 1). absolute, squared:
    how far it is from the label. value: the output itself, without labels.
    """

    output: str
    how: str = MATCH
    low: float = 0.0
    high: float = 1.0
    """Values are cut off here; the difference is what 1 means."""
    better: str = "high"
    """Of a value: whether high or low ones are good."""


class Labels:
    """Labels of all endpoints, and what they say."""

    def __init__(self, series: Callable[[], Series], ledger: Ledger) -> None:
        self._blocks = Blocks(PREFIX, Labelled, series, ledger)
        self._journal = Blocks(JOURNAL, Logged, series, ledger)
        self._seen: OrderedDict[tuple[str, Quality, float], _Seen] = OrderedDict()

    def append(self, whose: Whose, rows: list[Labelled]) -> None:
        """Keep labels; durable on return. Of two of one request the later counts."""
        if rows:
            self._blocks.append([self._sealed(whose, rows)])

    def read(self, tenant: str, ref: Ref, since: float = 0.0) -> list[Labelled]:
        """Labels from a moment on, in the order they came."""
        found = [row for block in self._blocks.blocks(tenant, ref, since) for row in self._blocks.rows(block)]
        return sorted((row for row in found if row.at >= since), key=lambda row: row.at)

    def quality(self, tenant: str, ref: Ref, quality: Quality, since: float) -> dict[str, Tally]:
        """How bad the answers of each arm were since a moment: their number, and one minus the quality summed."""
        truth = None if quality.how == VALUE else _Truth(self.read(tenant, ref, since))
        sums: dict[str, list[float]] = {}
        for row in self._scored(tenant, ref, quality, since):
            label = 0.0 if truth is None else truth.of(row)
            if label is not None and row.values:
                sums.setdefault(row.arm, []).append(badness(quality, row.values, label))
        return {arm: Tally(len(found), float(np.sum(found))) for arm, found in sums.items()}

    def forget(self, whose: Whose, keys: Iterable[str], ids: Iterable[str] = ()) -> int:
        """Remove the labels of a person; gives how many."""
        gone, by_key, by_id = 0, frozenset(keys) - {""}, frozenset(ids) - {""}
        for block in self._blocks.blocks(whose.tenant, whose.ref):
            rows = self._blocks.rows(block) if self._blocks.may_name(block, by_key | by_id) else []
            left = [row for row in rows if row.key not in by_key and row.id not in by_id]
            if len(left) < len(rows):
                made = [self._sealed(whose._replace(zone=block.zone), left)] if left else []
                gone += (len(rows) - len(left)) * self._blocks.swap(whose.tenant, whose.ref, [block.id], made)
        self._seen.clear()
        return gone

    def expire(self, tenant: str, ref: Ref, before: float) -> int:
        """Remove labels older than a moment."""
        return self._blocks.expire(tenant, ref, before)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)

    def _sealed(self, whose: Whose, rows: list[Labelled]) -> Block:
        names = (name for row in rows for name in (row.key, row.id))
        return self._blocks.sealed(whose, rows, (rows[0].at, rows[-1].at), names=names)

    def _scored(self, tenant: str, ref: Ref, quality: Quality, since: float) -> Iterable[Scored]:
        """What was answered since a moment. Blocks are read once: a long trial costs no more each time it is judged."""
        key = (self._journal.name(tenant, ref), quality, since)
        seen = self._seen.setdefault(key, _Seen())
        self._seen.move_to_end(key)
        if len(self._seen) > _TRIALS:
            self._seen.popitem(last=False)
        for block in self._journal.blocks(tenant, ref, max(since, seen.newest - _LATE_S)):
            if block.id not in seen.blocks and len(seen.rows) < MOST_SCORED:
                seen.blocks.add(block.id)
                seen.newest = max(seen.newest, block.at)
                rows = (row for row in self._journal.rows(block) if row.at >= since)
                seen.rows += [score(row, quality) for row in rows]
        return seen.rows


class _Seen:
    """What is known of a trial's answers."""

    __slots__ = ("blocks", "newest", "rows")

    def __init__(self) -> None:
        self.blocks: set[str] = set()
        self.newest = 0.0
        self.rows: list[Scored] = []


class _Truth:
    """Labels by request and by key."""

    def __init__(self, labels: list[Labelled]) -> None:
        self._ids = {row.id: row.value for row in labels if row.id}
        self._keys: dict[str, list[Labelled]] = {}
        for row in labels:
            if row.key and not row.id:
                self._keys.setdefault(row.key, []).append(row)

    def of(self, row: Scored) -> float | None:
        """The label of a request: its own, else the first one of its key that came after it."""
        if row.id in self._ids:
            return self._ids[row.id]
        return next((one.value for one in self._keys.get(row.key, ()) if one.at >= row.at), None)


def badness(quality: Quality, values: tuple[float, ...], label: float) -> float:
    """One minus the quality of an answer: the mean of its rows."""
    span = quality.high - quality.low
    found = np.asarray(values)
    if quality.how == MATCH:
        return float(np.mean(found != label))
    if quality.how == VALUE:
        good = np.clip((found - quality.low) / span, 0.0, 1.0)
        return float(np.mean(1 - good if quality.better == "high" else good))
    far = np.clip(np.abs(found - label) / span, 0.0, 1.0)
    return float(np.mean(far if quality.how == ABSOLUTE else far**2))


def score(row: Logged, quality: Quality) -> Scored:
    """A row's output as numbers to compare with a label; none where there is no such output."""
    values: tuple[float, ...] = ()
    rows = rows_of(outputs_of(row), quality.output)
    if rows is not None and rows.shape[1]:
        if quality.how == MATCH:
            single = rows.shape[1] == 1
            flat = rows[:, 0]
            # A score between 0 and 1 is a chance; anything else that stands alone is the answer itself.
            chance = single and bool(((flat >= 0) & (flat <= 1)).all())
            flat = (flat >= 0.5).astype(float) if chance else flat if single else rows.argmax(1).astype(float)
        else:
            flat = rows.mean(1)
        values = tuple(flat[np.isfinite(flat)].tolist())
    return Scored(row.at, row.id, row.key, row.arm, row.revision, values)
