"""The axes of a profile side by side: counts of all columns and segments as one padded matrix."""

from collections.abc import Sequence

import numpy as np

from falaj.core.errors import Invalid
from falaj.drift.measures import Bools, Floats, Ints
from falaj.drift.records import KIND_NUMBER, DataProfile, ProfileAxis
from falaj.drift.tally import DataTally

OTHERS_SEGMENT = "others"
"""What the segment of all other values is called."""
_MAX_DEVIATIONS = 8.0


class ProfileMatrix:
    """Where each bin of each axis lies. A number's row is below, its bins, above; a category's its values, others."""

    def __init__(self, profile: DataProfile) -> None:
        axes = profile.axes
        self.profile = profile
        self.number = np.array([axis.kind == KIND_NUMBER for axis in axes], np.bool_)
        self.bins = np.array([axis.bins for axis in axes], np.int64)
        self.weight = np.array([axis.weight for axis in axes], np.float64)
        self.start = np.concatenate([[0], np.cumsum(self.bins + 4)]).astype(np.int64)
        self.groups = ("",) if not profile.segments else ("", *profile.segments, OTHERS_SEGMENT)
        """All rows, then each segment."""
        width = int(self.bins.max(initial=0)) + 2
        bin_number, start = np.arange(width)[None, :], self.start[:-1, None]
        bins, is_number_column = self.bins[:, None], self.number[:, None]
        inner_positions = start + np.where(is_number_column, bin_number - 1, bin_number)
        ordered_positions = np.where(
            bin_number == 0, start + bins + 2, np.where(bin_number == bins + 1, start + bins + 3, inner_positions)
        )
        is_used = bin_number < np.where(is_number_column, bins + 2, bins)
        self._bin_positions = np.where(
            is_used, np.where(is_number_column, ordered_positions, inner_positions), self.start[-1]
        )

    def counts(self, source: DataTally | None) -> Ints:
        """[group, column of all]: those of a tally, or of the profile itself; one empty column at the end."""
        segment_counts = self._list_reference_counts() if source is None else source.counts
        if segment_counts.shape != (max(1, len(self.groups) - 1), self.start[-1]):
            raise Invalid("the tally was cut by another profile", hint="count with the profile it is compared with")
        total_counts = (
            segment_counts.sum(0, keepdims=True)
            if source is not None or len(segment_counts) == 1
            else self._flatten_counts()
        )
        groups = total_counts if len(self.groups) == 1 else np.concatenate([total_counts, segment_counts])
        return np.concatenate([groups, np.zeros((len(groups), 1), np.int64)], axis=1)

    def _list_reference_counts(self) -> Ints:
        if len(self.groups) == 1:
            return self._flatten_counts()
        if not self.profile.by_segment:
            return np.zeros((len(self.groups) - 1, self.start[-1]), np.int64)
        return np.array([_flatten_axis_counts(segment) for segment in self.profile.by_segment], np.int64)

    def _flatten_counts(self) -> Ints:
        return np.array([_flatten_axis_counts(self.profile.counts)], np.int64).reshape(1, -1)

    def matrix(self, counts: Ints) -> Ints:
        """[group, axis, bin]."""
        return counts[:, self._bin_positions]

    def odd(self, counts: Ints, special_number: int) -> Ints:
        """[axis]: of all groups, how many were missing (0), infinite, below, above (3)."""
        return np.asarray(counts[0, self.start[:-1] + self.bins + special_number], np.int64)

    def places(self) -> Floats:
        """[axis, bin]: where values of a bin are, in standard deviations; 0 for categories."""
        places = np.zeros(self._bin_positions.shape)
        for axis_number, axis in enumerate(self.profile.axes):
            if axis.kind == KIND_NUMBER:
                bin_ends = np.array([axis.low, *axis.edges, axis.high])
                bin_middles = np.concatenate([bin_ends[:1], bin_ends[:-1] / 2 + bin_ends[1:] / 2, bin_ends[-1:]])
                if axis.std > 0:  # A wild value in the reference must not make the way to its bin long.
                    bin_middles = np.clip(
                        bin_middles, axis.mean - _MAX_DEVIATIONS * axis.std, axis.mean + _MAX_DEVIATIONS * axis.std
                    )
                places[axis_number, : len(bin_middles)], places[axis_number, len(bin_middles) :] = (
                    bin_middles,
                    bin_middles[-1],
                )
                places[axis_number] /= axis.std or max(axis.high / 2 - axis.low / 2, abs(axis.mean), 1e-300)
        return places

    def sure(self, reference_counts: Ints) -> Bools:
        """[axis, bin]: false for values of a category that are listed by luck: in another sample they might not be.

        The most common of very many values look more common than they are, because they were chosen for it.
        """
        is_value = np.arange(reference_counts.shape[1])[None, :] < (self.bins - 1)[:, None]
        is_listed = is_value & ~self.number[:, None]
        has_others = reference_counts[np.arange(len(reference_counts)), np.where(self.number, 0, self.bins - 1)] > 0
        least_counts = np.where(is_listed, reference_counts, np.iinfo(np.int64).max).min(1, keepdims=True)
        is_lucky = is_listed & (reference_counts - 3 * np.sqrt(reference_counts) < least_counts) & has_others[:, None]
        return np.asarray(~is_lucky, np.bool_)

    def folded(self, matrix: Ints, is_stable: Bools) -> Ints:
        """With values that are not sure counted among the others."""
        if is_stable.all():
            return matrix
        folded_counts = np.where(is_stable, matrix, 0)
        folded_counts[..., np.arange(len(is_stable)), self.bins - 1] += np.where(is_stable, 0, matrix).sum(-1)
        return folded_counts

    def closed(self, reference_counts: Ints) -> Bools:
        """[axis]: whether it is a category whose values the reference has all on its axis."""
        return np.asarray(
            ~self.number & (reference_counts[np.arange(len(reference_counts)), self.bins - 1] == 0), np.bool_
        )


def estimate_quantiles(
    axis_counts: Ints, axis: ProfileAxis, levels: Sequence[float] = (0.25, 0.5, 0.75)
) -> list[float]:
    """About where so large shares of the rows of a number (below, bins, above) are less."""
    bin_ends = np.array([axis.low, axis.low, *axis.edges, axis.high, axis.high])
    cumulative_counts = np.zeros(len(bin_ends))
    np.cumsum(axis_counts[: len(bin_ends) - 1], out=cumulative_counts[1:])
    return [
        float(quantile) for quantile in np.interp(np.array(levels) * cumulative_counts[-1], cumulative_counts, bin_ends)
    ]


def _flatten_axis_counts(counts: Sequence[Sequence[int]]) -> list[int]:
    return [count for axis in counts for count in axis]
