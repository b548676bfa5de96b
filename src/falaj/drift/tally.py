"""What came, counted: one vector of counts for each segment, and little more. Tallies of two places add up.

Axis i has its bins, then the four of ODD, at `start[i]`. Rows, sums, the most frequent unknown values, the number of
different ones and a sample of rows stand beside. Everything is bounded, however much comes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.drift.joint_features import compute_features
from falaj.drift.records import KIND_CATEGORY, KIND_NUMBER, ROLE_INPUT, DataProfile
from falaj.drift.row_samples import (
    MAX_SAMPLE_ROWS,
    REGISTER_COUNT,
    RowSample,
    estimate_distinct,
    make_empty_sample,
    merge_new_values,
    register_values,
)
from falaj.drift.value_binning import (
    SPECIAL_BIN_COUNT,
    Array,
    CategoryFinder,
    Floats,
    Ints,
    NumberCutter,
    get_spread,
    to_category_text,
)

_BLOCK_VALUES = 1 << 16
"""Values that are cut at once: they fit a cache."""
_MAX_MIXED_ROWS, _MAX_MIXED_VALUES = 64, 4000
"""Rows of a block whose mixture is taken, at most, and their values: a larger product would wake other threads."""
_MAX_DEVIATIONS = 8.0
"""Standard deviations; a value further out counts as this in sums."""


class _ColumnSource(NamedTuple):
    """Where the values of a column are: in the matrix, or by name beside it."""

    at: int
    name: str

    def of(self, matrix: Array, extra: Mapping[str, Array]) -> Array:
        return matrix[:, self.at] if self.at >= 0 else extra[self.name]


class _BlockPlan(NamedTuple):
    """Which axes a block has, and where."""

    axes: NDArray[np.intp]
    """Numbers."""
    columns: NDArray[np.intp] | None
    """Of the matrix, for those; None: all as they stand."""
    numbers: NumberCutter
    slope: Floats
    shift: Floats
    """From moved and scaled as they are cut to standard deviations from the mean: slope * z + shift."""
    mixed: NDArray[np.intp] | None
    """Which of the numbers are inputs; None unless all that the mixture is made of are here."""
    words: tuple[tuple[int, CategoryFinder, _ColumnSource], ...]
    segment: _ColumnSource | None


class DataTally:
    """Counts of the rows that came, cut as a profile says."""

    def __init__(
        self, profile: DataProfile, *, max_sample_rows: int = MAX_SAMPLE_ROWS, seed: int | None = None
    ) -> None:
        axes = profile.axes
        self.profile = profile
        widths = [axis.bins + SPECIAL_BIN_COUNT for axis in axes]
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
        """Sum of random Fourier features, and of how many rows (drift/joint_features.py)."""
        self.sample: RowSample = make_empty_sample(len(axes))
        self._max_sample_rows, self._random = max_sample_rows, np.random.default_rng(seed)
        self._finders: dict[int, CategoryFinder] = {}
        self._segments = CategoryFinder(profile.segments)
        self._plans: dict[tuple[tuple[str, ...], tuple[str, ...]], _BlockPlan] = {}

    def of(self, axis: int, segment: int | None = None) -> Ints:
        """Counts of one axis: its bins, then missing, infinite, below and above. Without a segment, of all."""
        axis_counts = self.counts[:, self.start[axis] : self.start[axis + 1]]
        return np.asarray(axis_counts.sum(axis=0) if segment is None else axis_counts[segment], np.int64)

    def unknown_values(self, axis: int) -> float:
        """About how many different values came that are not on the axis of a category."""
        registers = self.distinct.get(self.profile.axes[axis].name)
        return 0.0 if registers is None else estimate_distinct(registers)

    def add(self, columns: Mapping[str, Array], *, ids: Sequence[str] = (), seen: int | None = None) -> None:
        """Counts rows, column by column. Columns that are not in the profile are left out, and the other way round."""
        axes = {axis.name: axis for axis in self.profile.axes}
        names = tuple(name for name, axis in axes.items() if axis.kind == KIND_NUMBER and name in columns)
        extra = {name: columns[name] for name in columns if name in axes or name == self.profile.segment}
        rows = len(next(iter(extra.values()))) if extra else 0
        if any(len(column) != rows for column in extra.values()):
            raise Invalid("the columns have different numbers of rows", "give each a value for every row")
        other_columns = {name: column for name, column in extra.items() if name not in names}
        for start in range(0, rows, step := max(256, _BLOCK_VALUES // max(1, len(names)))):
            row_slice = slice(start, min(rows, start + step))
            matrix = np.empty((row_slice.stop - start, len(names)))
            for position, name in enumerate(names):
                matrix[:, position] = to_float_values(columns[name][row_slice])
            other_parts = {name: column[row_slice] for name, column in other_columns.items()}
            self.add_matrix(matrix, names, other_parts, ids=ids[row_slice], seen=0)
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
        other_columns = extra or {}
        plan = self._get_block_plan(names, tuple(other_columns))
        rows = len(matrix)
        segments = len(self.profile.segments)
        segment_offsets = None
        if plan.segment is not None and segments:
            segment_offsets = (
                np.minimum(self._segments.find(plan.segment.of(matrix, other_columns)), segments) * self.width
            )
        picked_rows = self._select_rows(rows)
        picked_values = np.full((len(picked_rows), len(self.profile.axes)), np.nan, np.float32)
        if len(plan.axes):
            self._add_numbers(
                plan,
                matrix if plan.columns is None else matrix[:, plan.columns],
                segment_offsets,
                (picked_rows, picked_values),
            )
        for axis, finder, source in plan.words:
            column = source.of(matrix, other_columns)
            bins = finder.find(column)
            picked_values[:, axis] = bins[picked_rows]
            self._count_new_values(axis, column, bins == finder.count)
            self._count_bins(bins + self.start[axis], segment_offsets)
        self._add_to_sample(picked_rows, picked_values, ids)
        self.rows += rows
        self.seen += rows if seen is None else seen

    def _count_bins(self, bins: Ints, segment_offsets: Ints | None) -> None:
        if segment_offsets is not None:
            bins = bins + (segment_offsets[:, None] if bins.ndim == 2 else segment_offsets)
        elif len(self.counts) > 1:
            bins = bins + (len(self.counts) - 1) * self.width
        flat = self.counts.reshape(-1)
        if bins.size < flat.size:
            np.add.at(flat, bins.ravel(), 1)
        else:  # Several times as fast, but for the many that nothing fell into.
            flat += np.bincount(bins.ravel(), minlength=flat.size)

    def _add_numbers(
        self,
        plan: _BlockPlan,
        block: NDArray[np.floating],
        segment_offsets: Ints | None,
        picked_and_values: tuple[Ints, NDArray[np.float32]],
    ) -> None:
        bins, scaled = plan.numbers.cut(block)
        self._count_bins(bins, segment_offsets)
        slope, shift = plan.slope, plan.shift
        picked_rows, picked_values = picked_and_values
        with np.errstate(over="ignore", invalid="ignore"):
            picked_values[:, plan.axes] = scaled[picked_rows] * slope + shift
            if plan.mixed is not None:
                self._add_mixture(scaled, plan)
        if not (is_finite := np.isfinite(block)).all():
            np.copyto(scaled, -shift / slope, where=~is_finite)  # At the mean, where it adds nothing.
        np.clip(scaled, (-_MAX_DEVIATIONS - shift) / slope, (_MAX_DEVIATIONS - shift) / slope, out=scaled)
        sums, square_sums = scaled.sum(axis=0), np.einsum("ij,ij->j", scaled, scaled)
        self.sums[plan.axes] += slope * sums + len(block) * shift
        self.squares[plan.axes] += slope**2 * square_sums + 2 * slope * shift * sums + len(block) * shift**2

    def _add_mixture(self, scaled: Floats, plan: _BlockPlan) -> None:
        """How columns go together, of some rows: cosines cost more than counting."""
        step = -(-len(scaled) // min(_MAX_MIXED_ROWS, max(1, _MAX_MIXED_VALUES // scaled.shape[1])))
        mixed_rows = scaled[int(self._random.integers(step)) :: step]
        self.mixture += compute_features((mixed_rows * plan.slope + plan.shift)[:, plan.mixed]).sum(
            axis=0, dtype=np.float64
        )
        self.mixed += len(mixed_rows)

    def _count_new_values(self, axis: int, column: Array, is_unknown: NDArray[np.bool_]) -> None:
        """Values that the axis of a category does not have."""
        if not is_unknown.any():
            return
        values, name = column[is_unknown], self.profile.axes[axis].name
        value_counts: dict[str, int] = {}
        for value in map(to_category_text, values.tolist()):
            value_counts[value] = value_counts.get(value, 0) + 1
        self.fresh[name] = merge_new_values(self.fresh.get(name, {}), value_counts)
        register_values(value_counts, self.distinct.setdefault(name, np.zeros(REGISTER_COUNT, np.uint8)))

    def _select_rows(self, rows: int) -> Ints:
        """Rows that the sample wants; their keys are drawn here so that nothing about a row decides."""
        if not self._max_sample_rows:
            return np.empty(0, np.int64)
        self._keys = self._random.random(rows)
        picked_rows = np.flatnonzero(self._keys < self.sample.bound)
        if len(picked_rows) > self._max_sample_rows:
            picked_rows = picked_rows[
                np.argpartition(self._keys[picked_rows], self._max_sample_rows)[: self._max_sample_rows + 1]
            ]
        return picked_rows

    def _add_to_sample(self, picked_rows: Ints, picked_values: NDArray[np.float32], ids: Sequence[str | bytes]) -> None:
        if len(picked_rows):
            names = (
                tuple(_decode_name(ids[position]) for position in picked_rows.tolist())
                if len(ids)
                else ("",) * len(picked_rows)
            )
            self.sample = self.sample.joined(
                RowSample(picked_values, self._keys[picked_rows], names), self._max_sample_rows
            )

    def anew(self) -> "DataTally":
        """An empty one that cuts the same, without making its tables again."""
        empty_tally = DataTally(self.profile, max_sample_rows=self._max_sample_rows)
        empty_tally._finders, empty_tally._plans, empty_tally._random = self._finders, self._plans, self._random
        return empty_tally

    def merged(self, other: "DataTally") -> "DataTally":
        """Both together, as a new one. The order of joining does not matter to the counts."""
        if self.start.tolist() != other.start.tolist() or self.counts.shape != other.counts.shape:
            raise Invalid("the tallies were cut by different profiles", "join tallies of one profile")
        merged = DataTally(self.profile)
        merged.counts = self.counts + other.counts
        for name in ("rows", "seen", "odd", "sums", "squares", "mixture", "mixed"):
            setattr(merged, name, getattr(self, name) + getattr(other, name))
        for name in sorted({*self.fresh, *other.fresh}):
            merged.fresh[name] = merge_new_values(self.fresh.get(name, {}), other.fresh.get(name, {}))
        for name in sorted({*self.distinct, *other.distinct}):
            empty_registers = np.zeros(REGISTER_COUNT, np.uint8)
            merged.distinct[name] = np.maximum(
                self.distinct.get(name, empty_registers), other.distinct.get(name, empty_registers)
            )
        merged.sample = self.sample.joined(other.sample)
        return merged

    def to_bytes(self) -> bytes:
        """As it travels and is kept."""
        from falaj.drift.tally_encoding import encode_tally

        return encode_tally(self)

    @staticmethod
    def from_bytes(data: bytes, profile: DataProfile) -> "DataTally":
        """A tally that was cut by this profile; Corrupt where it was not, or is none."""
        from falaj.drift.tally_encoding import decode_tally

        return decode_tally(data, profile)

    @property
    def size_bytes(self) -> int:
        """What counting takes in memory, about."""
        tables = sum(plan.numbers.size_bytes for plan in self._plans.values())
        return self.counts.nbytes + tables + self.sample.values.nbytes + len(self.distinct) * REGISTER_COUNT

    def _get_block_plan(self, names: tuple[str, ...], other_names: tuple[str, ...]) -> _BlockPlan:
        if (plan := self._plans.get((names, other_names))) is None:
            plan = self._plans[names, other_names] = self._make_block_plan(names, other_names)
        return plan

    def _make_block_plan(self, names: tuple[str, ...], other_names: tuple[str, ...]) -> _BlockPlan:
        source_by_name = {name: _ColumnSource(position, name) for position, name in enumerate(names)}
        source_by_name |= {name: _ColumnSource(-1, name) for name in other_names if name not in source_by_name}
        profile = self.profile
        numbers = [
            index for index, axis in enumerate(profile.axes) if axis.kind == KIND_NUMBER and axis.name in source_by_name
        ]
        columns = [source_by_name[profile.axes[index].name].at for index in numbers]
        if any(column < 0 for column in columns):
            raise Invalid("a column of numbers stands beside the matrix", "put it in the matrix, or use add")
        words = tuple(
            (index, self._finders.setdefault(index, CategoryFinder(axis.values)), source_by_name[axis.name])
            for index, axis in enumerate(profile.axes)
            if axis.kind == KIND_CATEGORY and axis.name in source_by_name
        )
        axes = [profile.axes[index] for index in numbers]
        cutter = NumberCutter(axes, [int(self.start[index]) for index in numbers])
        deviations, mean = np.array([get_spread(axis) for axis in axes]), np.array([axis.mean for axis in axes])
        is_whole_matrix = columns == list(range(len(names)))
        input_positions = [position for position, axis in enumerate(axes) if axis.role == ROLE_INPUT]
        input_count = sum(axis.kind == KIND_NUMBER and axis.role == ROLE_INPUT for axis in profile.axes)
        return _BlockPlan(
            np.array(numbers, np.intp),
            None if is_whole_matrix else np.array(columns, np.intp),
            cutter,
            cutter.scale / deviations,
            (cutter.centre - mean) / deviations,
            np.array(input_positions, np.intp) if len(self.mixture) and len(input_positions) == input_count else None,
            words,
            source_by_name.get(profile.segment),
        )


def _decode_name(name: str | bytes) -> str:
    return name.decode("ascii", "replace") if isinstance(name, bytes) else name


def to_float_values(column: Array) -> Floats:
    """A column as floats: dates are seconds, None is missing."""
    if column.dtype.kind in "mM":
        seconds = column.astype("datetime64[us]" if column.dtype.kind == "M" else "timedelta64[us]")
        return np.where(np.isnat(column), np.nan, seconds.view(np.int64) / 1e6)
    if column.dtype == object:
        return np.array([np.nan if value is None else value for value in column.tolist()], np.float64)
    return column.astype(np.float64)
