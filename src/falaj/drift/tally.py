"""What came, counted: one vector of counts for each segment, and little more. Tallies of two places add up.

Axis i has its bins, then the four of ODD, at `start[i]`. Rows, sums, the most frequent unknown values, the number of
different ones and a sample of rows stand beside. Everything is bounded, however much comes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.drift.cutting import ODDS, Array, Floats, Ints, Numbers, Words, spread, text
from falaj.drift.mixture import features
from falaj.drift.records import CATEGORY, INPUT, NUMBER, Profile
from falaj.drift.samples import MOST_ROWS, REGISTERS, Sample, different, empty, fresher, registered

_BLOCK = 1 << 16
"""Values that are cut at once: they fit a cache."""
_MIXED, _MIXED_VALUES = 64, 4000
"""Rows of a block whose mixture is taken, at most, and their values: a larger product would wake other threads."""
_WILD = 8.0
"""Standard deviations; a value further out counts as this in sums."""


class _Source(NamedTuple):
    """Where the values of a column are: in the matrix, or by name beside it."""

    at: int
    name: str

    def of(self, matrix: Array, extra: Mapping[str, Array]) -> Array:
        return matrix[:, self.at] if self.at >= 0 else extra[self.name]


class _Plan(NamedTuple):
    """Which axes a block has, and where."""

    axes: NDArray[np.intp]
    """Numbers."""
    columns: NDArray[np.intp] | None
    """Of the matrix, for those; None: all as they stand."""
    numbers: Numbers
    slope: Floats
    shift: Floats
    """From moved and scaled as they are cut to standard deviations from the mean: slope * z + shift."""
    mixed: NDArray[np.intp] | None
    """Which of the numbers are inputs; None unless all that the mixture is made of are here."""
    words: tuple[tuple[int, Words, _Source], ...]
    segment: _Source | None


class Tally:
    """Counts of the rows that came, cut as a profile says."""

    def __init__(self, profile: Profile, *, keep: int = MOST_ROWS, seed: int | None = None) -> None:
        axes = profile.axes
        self.profile = profile
        widths = [axis.bins + ODDS for axis in axes]
        self.start = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        self.width = int(self.start[-1])
        self.counts: Ints = np.zeros((len(profile.segments) + 1, self.width), np.int64)
        """A row for each segment, the last for all other rows."""
        self.rows = self.seen = self.odd = 0
        """Rows counted; that came (more, where only a share is counted); that did not fit the profile."""
        self.sums, self.squares = np.zeros(len(axes)), np.zeros(len(axes))
        """Of values in standard deviations of the reference from its mean; none counts for more than 8."""
        self.fresh: dict[str, dict[str, int]] = {}
        """For each category: values that are not on its axis, the most frequent ones."""
        self.distinct: dict[str, NDArray[np.uint8]] = {}
        """For each category that had such: HyperLogLog registers of them (`unknown_values`)."""
        self.mixture, self.mixed = np.zeros(len(profile.mixture[0])), 0
        """Sum of random Fourier features, and of how many rows (drift/mixture.py)."""
        self.sample: Sample = empty(len(axes))
        self._keep, self._random = keep, np.random.default_rng(seed)
        self._words: dict[int, Words] = {}
        self._segments = Words(profile.segments)
        self._plans: dict[tuple[tuple[str, ...], tuple[str, ...]], _Plan] = {}

    def of(self, axis: int, segment: int | None = None) -> Ints:
        """Counts of one axis: its bins, then missing, infinite, below and above. Without a segment, of all."""
        part = self.counts[:, self.start[axis] : self.start[axis + 1]]
        return np.asarray(part.sum(axis=0) if segment is None else part[segment], np.int64)

    def unknown_values(self, axis: int) -> float:
        """About how many different values came that are not on the axis of a category."""
        registers = self.distinct.get(self.profile.axes[axis].name)
        return 0.0 if registers is None else different(registers)

    def add(self, columns: Mapping[str, Array], *, ids: Sequence[str] = (), seen: int | None = None) -> None:
        """Counts rows, column by column. Columns that are not in the profile are left out, and the other way round."""
        axes = {axis.name: axis for axis in self.profile.axes}
        names = tuple(name for name, axis in axes.items() if axis.kind == NUMBER and name in columns)
        extra = {name: columns[name] for name in columns if name in axes or name == self.profile.segment}
        rows = len(next(iter(extra.values()))) if extra else 0
        if any(len(column) != rows for column in extra.values()):
            raise Invalid("the columns have different numbers of rows", "give each a value for every row")
        beside = {name: column for name, column in extra.items() if name not in names}
        for first in range(0, rows, step := max(256, _BLOCK // max(1, len(names)))):
            part = slice(first, min(rows, first + step))
            matrix = np.empty((part.stop - first, len(names)))
            for at, name in enumerate(names):
                matrix[:, at] = as_numbers(columns[name][part])
            cut = {name: column[part] for name, column in beside.items()}
            self.add_matrix(matrix, names, cut, ids=ids[part], seen=0)
        self.seen += rows if seen is None else seen

    def add_matrix(
        self,
        matrix: NDArray[np.floating],
        names: tuple[str, ...],
        extra: Mapping[str, Array] | None = None,
        *,
        ids: Sequence[str | bytes] = (),
        seen: int | None = None,
    ) -> None:
        """Counts rows whose numbers stand in a matrix, a column for each name; others, as text, beside it."""
        beside = extra or {}
        plan = self._plan(names, tuple(beside))
        rows = len(matrix)
        segments = len(self.profile.segments)
        whose = None
        if plan.segment is not None and segments:
            whose = np.minimum(self._segments.find(plan.segment.of(matrix, beside)), segments) * self.width
        picked = self._picked(rows)
        chosen = np.full((len(picked), len(self.profile.axes)), np.nan, np.float32)
        if len(plan.axes):
            self._add_numbers(
                plan, matrix if plan.columns is None else matrix[:, plan.columns], whose, (picked, chosen)
            )
        for axis, words, source in plan.words:
            column = source.of(matrix, beside)
            found = words.find(column)
            chosen[:, axis] = found[picked]
            self._note_fresh(axis, column, found == words.count)
            self._count(found + self.start[axis], whose)
        self._keep_rows(picked, chosen, ids)
        self.rows += rows
        self.seen += rows if seen is None else seen

    def _count(self, bins: Ints, whose: Ints | None) -> None:
        if whose is not None:
            bins = bins + (whose[:, None] if bins.ndim == 2 else whose)
        elif len(self.counts) > 1:
            bins = bins + (len(self.counts) - 1) * self.width
        flat = self.counts.reshape(-1)
        if bins.size < flat.size:
            np.add.at(flat, bins.ravel(), 1)
        else:  # Several times as fast, but for the many that nothing fell into.
            flat += np.bincount(bins.ravel(), minlength=flat.size)

    def _add_numbers(
        self, plan: _Plan, block: NDArray[np.floating], whose: Ints | None, kept: tuple[Ints, NDArray[np.float32]]
    ) -> None:
        bins, scaled = plan.numbers.cut(block)
        self._count(bins, whose)
        slope, shift = plan.slope, plan.shift
        picked, chosen = kept
        with np.errstate(over="ignore", invalid="ignore"):
            chosen[:, plan.axes] = scaled[picked] * slope + shift
            if plan.mixed is not None:
                self._mix(scaled, plan)
        if not (finite := np.isfinite(block)).all():
            np.copyto(scaled, -shift / slope, where=~finite)  # At the mean, where it adds nothing.
        np.clip(scaled, (-_WILD - shift) / slope, (_WILD - shift) / slope, out=scaled)
        once, twice = scaled.sum(axis=0), np.einsum("ij,ij->j", scaled, scaled)
        self.sums[plan.axes] += slope * once + len(block) * shift
        self.squares[plan.axes] += slope**2 * twice + 2 * slope * shift * once + len(block) * shift**2

    def _mix(self, scaled: Floats, plan: _Plan) -> None:
        """How columns go together, of some rows: cosines cost more than counting."""
        step = -(-len(scaled) // min(_MIXED, max(1, _MIXED_VALUES // scaled.shape[1])))
        some = scaled[int(self._random.integers(step)) :: step]
        self.mixture += features((some * plan.slope + plan.shift)[:, plan.mixed]).sum(axis=0, dtype=np.float64)
        self.mixed += len(some)

    def _note_fresh(self, axis: int, column: Array, unknown: NDArray[np.bool_]) -> None:
        """Values that the axis of a category does not have."""
        if not unknown.any():
            return
        values, name = column[unknown], self.profile.axes[axis].name
        counted: dict[str, int] = {}
        for value in map(text, values.tolist()):
            counted[value] = counted.get(value, 0) + 1
        self.fresh[name] = fresher(self.fresh.get(name, {}), counted)
        registered(counted, self.distinct.setdefault(name, np.zeros(REGISTERS, np.uint8)))

    def _picked(self, rows: int) -> Ints:
        """Rows that the sample wants; their keys are drawn here so that nothing about a row decides."""
        if not self._keep:
            return np.empty(0, np.int64)
        self._keys = self._random.random(rows)
        picked = np.flatnonzero(self._keys < self.sample.bound)
        if len(picked) > self._keep:
            picked = picked[np.argpartition(self._keys[picked], self._keep)[: self._keep + 1]]
        return picked

    def _keep_rows(self, picked: Ints, chosen: NDArray[np.float32], ids: Sequence[str | bytes]) -> None:
        if len(picked):
            names = tuple(_text(ids[at]) for at in picked.tolist()) if len(ids) else ("",) * len(picked)
            self.sample = self.sample.joined(Sample(chosen, self._keys[picked], names), self._keep)

    def anew(self) -> "Tally":
        """An empty one that cuts the same, without making its tables again."""
        fresh = Tally(self.profile, keep=self._keep)
        fresh._words, fresh._plans, fresh._random = self._words, self._plans, self._random
        return fresh

    def merged(self, other: "Tally") -> "Tally":
        """Both together, as a new one. The order of joining does not matter to the counts."""
        if self.start.tolist() != other.start.tolist() or self.counts.shape != other.counts.shape:
            raise Invalid("the tallies were cut by different profiles", "join tallies of one profile")
        both = Tally(self.profile)
        both.counts = self.counts + other.counts
        for name in ("rows", "seen", "odd", "sums", "squares", "mixture", "mixed"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        for name in sorted({*self.fresh, *other.fresh}):
            both.fresh[name] = fresher(self.fresh.get(name, {}), other.fresh.get(name, {}))
        for name in sorted({*self.distinct, *other.distinct}):
            none = np.zeros(REGISTERS, np.uint8)
            both.distinct[name] = np.maximum(self.distinct.get(name, none), other.distinct.get(name, none))
        both.sample = self.sample.joined(other.sample)
        return both

    def to_bytes(self) -> bytes:
        """As it travels and is kept."""
        from falaj.drift.packing import packed

        return packed(self)

    @staticmethod
    def from_bytes(data: bytes, profile: Profile) -> "Tally":
        """A tally that was cut by this profile; Corrupt where it was not, or is none."""
        from falaj.drift.packing import unpacked

        return unpacked(data, profile)

    @property
    def size_bytes(self) -> int:
        """What counting takes in memory, about."""
        tables = sum(plan.numbers.size_bytes for plan in self._plans.values())
        return self.counts.nbytes + tables + self.sample.values.nbytes + len(self.distinct) * REGISTERS

    def _plan(self, names: tuple[str, ...], beside: tuple[str, ...]) -> _Plan:
        if (plan := self._plans.get((names, beside))) is None:
            plan = self._plans[names, beside] = self._planned(names, beside)
        return plan

    def _planned(self, names: tuple[str, ...], beside: tuple[str, ...]) -> _Plan:
        at = {name: _Source(place, name) for place, name in enumerate(names)}
        at |= {name: _Source(-1, name) for name in beside if name not in at}
        profile = self.profile
        numbers = [index for index, axis in enumerate(profile.axes) if axis.kind == NUMBER and axis.name in at]
        columns = [at[profile.axes[index].name].at for index in numbers]
        if any(column < 0 for column in columns):
            raise Invalid("a column of numbers stands beside the matrix", "put it in the matrix, or use add")
        words = tuple(
            (index, self._words.setdefault(index, Words(axis.values)), at[axis.name])
            for index, axis in enumerate(profile.axes)
            if axis.kind == CATEGORY and axis.name in at
        )
        axes = [profile.axes[index] for index in numbers]
        cutter = Numbers(axes, [int(self.start[index]) for index in numbers])
        wide, mean = np.array([spread(axis) for axis in axes]), np.array([axis.mean for axis in axes])
        whole = columns == list(range(len(names)))
        inputs = [place for place, axis in enumerate(axes) if axis.role == INPUT]
        wanted = sum(axis.kind == NUMBER and axis.role == INPUT for axis in profile.axes)
        return _Plan(
            np.array(numbers, np.intp),
            None if whole else np.array(columns, np.intp),
            cutter,
            cutter.scale / wide,
            (cutter.centre - mean) / wide,
            np.array(inputs, np.intp) if len(self.mixture) and len(inputs) == wanted else None,
            words,
            at.get(profile.segment),
        )


def _text(name: str | bytes) -> str:
    return name.decode("ascii", "replace") if isinstance(name, bytes) else name


def as_numbers(column: Array) -> Floats:
    """A column as floats: dates are seconds, None is missing."""
    if column.dtype.kind in "mM":
        seconds = column.astype("datetime64[us]" if column.dtype.kind == "M" else "timedelta64[us]")
        return np.where(np.isnat(column), np.nan, seconds.view(np.int64) / 1e6)
    if column.dtype == object:
        return np.array([np.nan if value is None else value for value in column.tolist()], np.float64)
    return column.astype(np.float64)
