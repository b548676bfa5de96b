"""The axes of a profile side by side: counts of all columns and segments as one padded matrix."""

from collections.abc import Sequence

import numpy as np

from falaj.core.errors import Invalid
from falaj.drift.measures import Bools, Floats, Ints
from falaj.drift.records import NUMBER, Axis, Profile
from falaj.drift.tally import Tally

OTHERS = "others"
"""What the segment of all other values is called."""
_WILD = 8.0


class Frame:
    """Where each bin of each axis lies. A number's row is below, its bins, above; a category's its values, others."""

    def __init__(self, profile: Profile) -> None:
        axes = profile.axes
        self.profile = profile
        self.number = np.array([axis.kind == NUMBER for axis in axes], np.bool_)
        self.bins = np.array([axis.bins for axis in axes], np.int64)
        self.weight = np.array([axis.weight for axis in axes], np.float64)
        self.start = np.concatenate([[0], np.cumsum(self.bins + 4)]).astype(np.int64)
        self.groups = ("",) if not profile.segments else ("", *profile.segments, OTHERS)
        """All rows, then each segment."""
        width = int(self.bins.max(initial=0)) + 2
        at, start = np.arange(width)[None, :], self.start[:-1, None]
        bins, number = self.bins[:, None], self.number[:, None]
        inner = start + np.where(number, at - 1, at)
        ordered = np.where(at == 0, start + bins + 2, np.where(at == bins + 1, start + bins + 3, inner))
        used = at < np.where(number, bins + 2, bins)
        self._at = np.where(used, np.where(number, ordered, inner), self.start[-1])

    def counts(self, source: Tally | None) -> Ints:
        """[group, column of all]: those of a tally, or of the profile itself; one empty column at the end."""
        parts = self._own() if source is None else source.counts
        if parts.shape != (max(1, len(self.groups) - 1), self.start[-1]):
            raise Invalid("the tally was cut by another profile", hint="count with the profile it is compared with")
        whole = parts.sum(0, keepdims=True) if source is not None or len(parts) == 1 else self._flat()
        groups = whole if len(self.groups) == 1 else np.concatenate([whole, parts])
        return np.concatenate([groups, np.zeros((len(groups), 1), np.int64)], axis=1)

    def _own(self) -> Ints:
        if len(self.groups) == 1:
            return self._flat()
        if not self.profile.by_segment:
            return np.zeros((len(self.groups) - 1, self.start[-1]), np.int64)
        return np.array([_joined(segment) for segment in self.profile.by_segment], np.int64)

    def _flat(self) -> Ints:
        return np.array([_joined(self.profile.counts)], np.int64).reshape(1, -1)

    def matrix(self, counts: Ints) -> Ints:
        """[group, axis, bin]."""
        return counts[:, self._at]

    def odd(self, counts: Ints, which: int) -> Ints:
        """[axis]: of all groups, how many were missing (0), infinite, below, above (3)."""
        return np.asarray(counts[0, self.start[:-1] + self.bins + which], np.int64)

    def places(self) -> Floats:
        """[axis, bin]: where values of a bin are, in standard deviations; 0 for categories."""
        found = np.zeros(self._at.shape)
        for at, axis in enumerate(self.profile.axes):
            if axis.kind == NUMBER:
                ends = np.array([axis.low, *axis.edges, axis.high])
                middles = np.concatenate([ends[:1], ends[:-1] / 2 + ends[1:] / 2, ends[-1:]])
                if axis.std > 0:  # A wild value in the reference must not make the way to its bin long.
                    middles = np.clip(middles, axis.mean - _WILD * axis.std, axis.mean + _WILD * axis.std)
                found[at, : len(middles)], found[at, len(middles) :] = middles, middles[-1]
                found[at] /= axis.std or max(axis.high / 2 - axis.low / 2, abs(axis.mean), 1e-300)
        return found

    def sure(self, theirs: Ints) -> Bools:
        """[axis, bin]: false for values of a category that are listed by luck: in another sample they might not be.

        The most common of very many values look more common than they are, because they were chosen for it.
        """
        values = np.arange(theirs.shape[1])[None, :] < (self.bins - 1)[:, None]
        listed = values & ~self.number[:, None]
        others = theirs[np.arange(len(theirs)), np.where(self.number, 0, self.bins - 1)] > 0
        least = np.where(listed, theirs, np.iinfo(np.int64).max).min(1, keepdims=True)
        lucky = listed & (theirs - 3 * np.sqrt(theirs) < least) & others[:, None]
        return np.asarray(~lucky, np.bool_)

    def folded(self, matrix: Ints, sure: Bools) -> Ints:
        """With values that are not sure counted among the others."""
        if sure.all():
            return matrix
        kept = np.where(sure, matrix, 0)
        kept[..., np.arange(len(sure)), self.bins - 1] += np.where(sure, 0, matrix).sum(-1)
        return kept

    def closed(self, theirs: Ints) -> Bools:
        """[axis]: whether it is a category whose values the reference has all on its axis."""
        return np.asarray(~self.number & (theirs[np.arange(len(theirs)), self.bins - 1] == 0), np.bool_)


def quantiles(axis_counts: Ints, axis: Axis, at: Sequence[float] = (0.25, 0.5, 0.75)) -> list[float]:
    """About where so large shares of the rows of a number (below, bins, above) are less."""
    ends = np.array([axis.low, axis.low, *axis.edges, axis.high, axis.high])
    upto = np.zeros(len(ends))
    np.cumsum(axis_counts[: len(ends) - 1], out=upto[1:])
    return [float(one) for one in np.interp(np.array(at) * upto[-1], upto, ends)]


def _joined(counts: Sequence[Sequence[int]]) -> list[int]:
    return [count for axis in counts for count in axis]
