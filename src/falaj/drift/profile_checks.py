"""What a profile must keep to: whoever wrote it, nothing in it is larger or odder than what is made here."""

from collections.abc import Collection, Iterator
from math import isfinite
from operator import lt

from falaj.drift.records import (
    KIND_CATEGORY,
    KIND_NUMBER,
    MAX_COLUMNS,
    MAX_EDGES,
    MAX_SEGMENTS,
    MAX_VALUES,
    ROLE_INPUT,
    ROLE_LABEL,
    ROLE_PREDICTION,
    SPECIAL_BINS,
    DataProfile,
    ProfileAxis,
)

MAX_PREDICTIONS = 40
_MAX_NAME_CHARS = 256
_MAX_COUNT = 1 << 53
_ALLOWED_KINDS, _ALLOWED_ROLES = (KIND_NUMBER, KIND_CATEGORY), (ROLE_INPUT, ROLE_PREDICTION, ROLE_LABEL)


def iterate_faults(profile: DataProfile) -> Iterator[str]:
    """All that is wrong with it, in words."""
    yield from _iterate_size_faults(profile)
    for axis in profile.axes:
        yield from _iterate_axis_faults(axis)
    yield from _iterate_count_faults(profile)
    yield from _iterate_other_faults(profile)


def _iterate_size_faults(profile: DataProfile) -> Iterator[str]:
    inputs = sum(axis.role == ROLE_INPUT for axis in profile.axes)
    if not profile.axes or inputs > MAX_COLUMNS or len(profile.axes) - inputs > MAX_PREDICTIONS:
        yield f"it has {inputs} inputs and {len(profile.axes) - inputs} other columns"
    if not all(_is_text(axis.name) and axis.name for axis in profile.axes):
        yield "a column has no name, or a very long one"
    elif len({axis.name for axis in profile.axes}) != len(profile.axes):
        yield "two columns have one name"
    if not (_is_count(profile.rows) and len(profile.segments) <= MAX_SEGMENTS and _is_text(profile.segment)):
        yield "its rows or segments are out of bounds"
    if not all(_is_text(segment) for segment in profile.segments) or len(set(profile.segments)) != len(
        profile.segments
    ):
        yield "its segments are not different texts"


def _iterate_axis_faults(axis: ProfileAxis) -> Iterator[str]:
    numbers = (axis.low, axis.high, axis.mean, axis.std, axis.weight, axis.centre, axis.scale, *axis.edges)
    if axis.kind not in _ALLOWED_KINDS or axis.role not in _ALLOWED_ROLES:
        yield f"{axis.name!r} is of an unknown kind or role"
    elif not _are_figures(numbers):
        yield f"{axis.name!r} has a figure that is no finite number"
    elif len(axis.edges) > MAX_EDGES or not all(map(lt, axis.edges, axis.edges[1:])):
        yield f"{axis.name!r} has too many edges, or they do not ascend"
    elif axis.low > axis.high or axis.std < 0 or axis.scale < 0 or axis.weight < 0:
        yield f"{axis.name!r} has a range or spread below nothing"
    elif len(axis.values) > MAX_VALUES or not all(_is_text(value) for value in axis.values):
        yield f"{axis.name!r} has too many values, or one that is no text"
    elif len(set(axis.values)) != len(axis.values):
        yield f"{axis.name!r} has a value twice"


def _iterate_count_faults(profile: DataProfile) -> Iterator[str]:
    count_sets = (profile.counts, *profile.by_segment)
    if len(profile.by_segment) not in {0, len(profile.segments) + 1}:
        yield "it does not count every segment"
    for axis_counts in count_sets:
        if len(axis_counts) != len(profile.axes):
            yield "it does not count every column"
        for axis, counts in zip(profile.axes, axis_counts, strict=False):
            if len(counts) != axis.bins + len(SPECIAL_BINS) or not _are_counts(counts):
                yield f"the counts of {axis.name!r} do not fit its bins"
            elif sum(counts) > profile.rows:
                yield f"{axis.name!r} counts more rows than there are"


def _iterate_other_faults(profile: DataProfile) -> Iterator[str]:
    quality = profile.quality
    figures = [*quality.metrics.values(), *quality.spread.values(), *profile.tests.values(), profile.made_at]
    figures += [
        *quality.scores,
        *quality.chances,
        *(figure for mixture_part in profile.mixture for figure in mixture_part),
    ]
    if len(figures) > 1 << 16 or len(quality.scores) != len(quality.chances):
        yield "its quality or mixture has parts that do not fit"
    elif not _are_figures(figures):
        yield "its quality has a figure that is no finite number"
    if not (_is_text(profile.source) and _is_text(quality.task) and _is_count(quality.rows)):
        yield "what it says of its source is too long"
    names = [name for columns in profile.tensors.values() for name in columns]
    if len(names) > 2 * MAX_COLUMNS or not all(_is_text(name) for name in (*names, *profile.tensors)):
        yield "its tensors have too many columns, or a column without a name"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME_CHARS


def _are_figures(values: Collection[object]) -> bool:
    """All finite; a whole number in JSON may be larger than any float. Thousands are looked at, in one go."""
    kinds = {*map(type, values)}
    if bool in kinds or not all(issubclass(kind, int | float) for kind in kinds):
        return False
    try:
        return all(map(isfinite, values))  # type: ignore[arg-type]
    except OverflowError:
        return False


def _are_counts(values: Collection[int]) -> bool:
    return {*map(type, values)} <= {int} and (not values or (min(values) >= 0 and max(values) < _MAX_COUNT))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT
