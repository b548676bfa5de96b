"""What a profile must keep to: whoever wrote it, nothing in it is larger or odder than what is made here."""

from collections.abc import Collection, Iterator
from math import isfinite
from operator import lt

from falaj.drift.records import (
    CATEGORY,
    INPUT,
    LABEL,
    MOST_COLUMNS,
    MOST_EDGES,
    MOST_SEGMENTS,
    MOST_VALUES,
    NUMBER,
    ODD,
    PREDICTION,
    Axis,
    Profile,
)

MOST_PREDICTIONS = 40
_MOST_NAME = 256
_MOST_COUNT = 1 << 53
_KINDS, _ROLES = (NUMBER, CATEGORY), (INPUT, PREDICTION, LABEL)


def faults(profile: Profile) -> Iterator[str]:
    """All that is wrong with it, in words."""
    yield from _size_faults(profile)
    for axis in profile.axes:
        yield from _axis_faults(axis)
    yield from _count_faults(profile)
    yield from _other_faults(profile)


def _size_faults(profile: Profile) -> Iterator[str]:
    inputs = sum(axis.role == INPUT for axis in profile.axes)
    if not profile.axes or inputs > MOST_COLUMNS or len(profile.axes) - inputs > MOST_PREDICTIONS:
        yield f"it has {inputs} inputs and {len(profile.axes) - inputs} other columns"
    if not all(_is_text(axis.name) and axis.name for axis in profile.axes):
        yield "a column has no name, or a very long one"
    elif len({axis.name for axis in profile.axes}) != len(profile.axes):
        yield "two columns have one name"
    if not (_is_count(profile.rows) and len(profile.segments) <= MOST_SEGMENTS and _is_text(profile.segment)):
        yield "its rows or segments are out of bounds"
    if not all(_is_text(one) for one in profile.segments) or len(set(profile.segments)) != len(profile.segments):
        yield "its segments are not different texts"


def _axis_faults(axis: Axis) -> Iterator[str]:
    numbers = (axis.low, axis.high, axis.mean, axis.std, axis.weight, axis.centre, axis.scale, *axis.edges)
    if axis.kind not in _KINDS or axis.role not in _ROLES:
        yield f"{axis.name!r} is of an unknown kind or role"
    elif not _are_figures(numbers):
        yield f"{axis.name!r} has a figure that is no finite number"
    elif len(axis.edges) > MOST_EDGES or not all(map(lt, axis.edges, axis.edges[1:])):
        yield f"{axis.name!r} has too many edges, or they do not ascend"
    elif axis.low > axis.high or axis.std < 0 or axis.scale < 0 or axis.weight < 0:
        yield f"{axis.name!r} has a range or spread below nothing"
    elif len(axis.values) > MOST_VALUES or not all(_is_text(one) for one in axis.values):
        yield f"{axis.name!r} has too many values, or one that is no text"
    elif len(set(axis.values)) != len(axis.values):
        yield f"{axis.name!r} has a value twice"


def _count_faults(profile: Profile) -> Iterator[str]:
    parts = (profile.counts, *profile.by_segment)
    if len(profile.by_segment) not in {0, len(profile.segments) + 1}:
        yield "it does not count every segment"
    for part in parts:
        if len(part) != len(profile.axes):
            yield "it does not count every column"
        for axis, counts in zip(profile.axes, part, strict=False):
            if len(counts) != axis.bins + len(ODD) or not _are_counts(counts):
                yield f"the counts of {axis.name!r} do not fit its bins"
            elif sum(counts) > profile.rows:
                yield f"{axis.name!r} counts more rows than there are"


def _other_faults(profile: Profile) -> Iterator[str]:
    quality = profile.quality
    figures = [*quality.metrics.values(), *quality.spread.values(), *profile.tests.values(), profile.made_at]
    figures += [*quality.scores, *quality.chances, *(one for part in profile.mixture for one in part)]
    if len(figures) > 1 << 16 or len(quality.scores) != len(quality.chances):
        yield "its quality or mixture has parts that do not fit"
    elif not _are_figures(figures):
        yield "its quality has a figure that is no finite number"
    if not (_is_text(profile.source) and _is_text(quality.task) and _is_count(quality.rows)):
        yield "what it says of its source is too long"
    names = [name for columns in profile.tensors.values() for name in columns]
    if len(names) > 2 * MOST_COLUMNS or not all(_is_text(name) for name in (*names, *profile.tensors)):
        yield "its tensors have too many columns, or a column without a name"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_NAME


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
    return {*map(type, values)} <= {int} and (not values or (min(values) >= 0 and max(values) < _MOST_COUNT))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_COUNT
