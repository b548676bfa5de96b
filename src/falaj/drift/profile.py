"""Making a profile of a reference, and reading one that somebody else may have written."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from falaj.core.errors import Invalid
from falaj.drift.bounds import faults
from falaj.drift.cutting import Array, Floats, frame, spread, text, true_edges
from falaj.drift.mixture import prepared
from falaj.drift.records import (
    CATEGORY,
    INPUT,
    LABEL,
    MOST_EDGES,
    MOST_SEGMENTS,
    MOST_VALUES,
    NUMBER,
    PREDICTION,
    Axis,
    Profile,
    Quality,
)
from falaj.drift.tally import Tally, as_numbers

MOST_BYTES = 24 << 20
FEW_WHOLE = 20
"""Whole numbers with no more different values than this are names, not amounts."""
_SAMPLE, _MIXED = 100_000, 20_000
_MOST_LAYOUTS = 64
_LAYOUTS: dict[int, tuple[Profile, str]] = {}
"""Of the profiles that were last used: every tally that is read or written asks for it."""


class About(TypedDict, total=False):
    """What else a profile can be told."""

    label: Array | None
    label_name: str
    segment: str
    source: str
    weights: Mapping[str, float]
    seed: int
    tensors: Mapping[str, tuple[str, ...]]
    quality: Quality


def profile_of(
    columns: Mapping[str, Array], *, predictions: Mapping[str, Array] | None = None, **about: Unpack[About]
) -> Profile:
    """A profile of reference rows: cut where a sample of them says, and counted all, by the code that counts later."""
    every: dict[str, tuple[Array, str]] = {name: (column, INPUT) for name, column in columns.items()}
    for name, column in (predictions or {}).items():
        if name in every:
            raise Invalid(f"{name!r} is an input and a prediction", "give the prediction another name")
        every[name] = column, PREDICTION
    if (label := about.get("label")) is not None:
        every[about.get("label_name") or "label"] = label, LABEL
    rows = _same_length(every)
    picks = _picks(rows, about.get("seed", 0))
    weights, segment = about.get("weights", {}), about.get("segment", "")
    axes = tuple(
        replace(_axis(name, column, picks), role=role, weight=float(weights.get(name, 1.0)))
        for name, (column, role) in every.items()
    )
    if segment and segment not in every:
        raise Invalid(f"there is no column {segment!r} to keep rows apart by", "name an input column")
    bare = Profile(
        axes,
        (),
        rows,
        segment,
        _segments(every[segment][0][picks]) if segment else (),
        tensors=dict(about.get("tensors", {})),
        quality=about.get("quality", Quality()),
        source=about.get("source", ""),
        made_at=time.time(),
    )
    bare = _with_mixture(bare, columns, picks)
    return checked(counted(bare, {name: column for name, (column, _) in every.items()}))


def _with_mixture(bare: Profile, columns: Mapping[str, Array], picks: Any) -> Profile:
    """How its columns go together, of some rows, drawn from all: tables are often sorted."""
    axes = [axis for axis in bare.axes if axis.role == INPUT and axis.kind == NUMBER]
    if not axes:
        return bare
    some = np.arange(bare.rows)[picks]
    some = some if len(some) <= _MIXED else np.sort(np.random.default_rng(0).choice(some, _MIXED, replace=False))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = [(as_numbers(columns[axis.name][some]) - axis.mean) / spread(axis) for axis in axes]
    found = prepared(np.clip(np.stack(scaled, axis=1), -1e6, 1e6))
    return replace(bare, mixture=(found.mean, found.spread), tests={**bare.tests, **found.tests})


def counted(bare: Profile, columns: Mapping[str, Array]) -> Profile:
    """The profile with counts of these rows."""
    tally = Tally(bare, keep=0, seed=0)
    tally.add(columns)
    return with_counts(bare, tally)


def with_counts(bare: Profile, tally: Tally) -> Profile:
    """The profile, with what a tally counted as its reference."""
    places = range(len(bare.axes))
    parts = range(len(bare.segments) + 1) if bare.segments else ()
    return replace(
        bare,
        rows=tally.rows,
        counts=tuple(tuple(tally.of(at).tolist()) for at in places),
        by_segment=tuple(tuple(tuple(tally.of(at, part).tolist()) for at in places) for part in parts),
    )


def _same_length(every: Mapping[str, tuple[Array, str]]) -> int:
    if not every:
        raise Invalid("there are no columns to profile", "give at least one input")
    sizes = {name: column.shape for name, (column, _) in every.items()}
    rows = next(iter(sizes.values()))[:1]
    for name, shape in sizes.items():
        if shape != rows:
            raise Invalid(f"column {name!r} has the shape {shape}, not {rows}", "give each column a value a row")
    return int(rows[0])


def _picks(rows: int, seed: int) -> Any:
    """Where the axes are cut is found on so many rows at most."""
    if rows <= _SAMPLE:
        return slice(None)
    return np.sort(np.random.default_rng(seed).choice(rows, _SAMPLE, replace=False))


def _axis(name: str, column: Array, picks: Any) -> Axis:
    kind = column.dtype.kind
    if kind in "iu":
        few = len(np.unique(column[picks])) <= FEW_WHOLE
        return category_axis(name, column[picks]) if few else number_axis(name, column, picks)
    if kind in "fmM":
        return number_axis(name, column, picks)
    if kind == "O":
        return _object_axis(name, column, picks)
    if kind in "bUST":
        return category_axis(name, column[picks])
    raise Invalid(f"column {name!r} has values of type {column.dtype}", "give numbers, text, booleans or dates")


def _object_axis(name: str, column: Array, picks: Any) -> Axis:
    """Python objects: what they are is what the first hundred thousand of them say."""
    kinds = {type(value) for value in column[picks].tolist()} - {type(None)}
    whole = kinds <= {int, float} and all(
        value is None or (isinstance(value, int) or value != value) for value in column[picks].tolist()
    )
    if kinds and kinds <= {int, float} and not whole:
        return number_axis(name, column, picks)
    if kinds and kinds <= {int, float}:
        values = as_numbers(column[picks])
        if len(np.unique(values[~np.isnan(values)])) > FEW_WHOLE:
            return number_axis(name, column, picks)
    return category_axis(name, column[picks])


def category_axis(name: str, column: Array) -> Axis:
    """Its most common values, the most common first."""
    return Axis(name, CATEGORY, values=_common(column, MOST_VALUES))


def _common(column: Array, most: int) -> tuple[str, ...]:
    try:
        every = Counter(column.tolist())
    except TypeError as error:
        raise Invalid("a column holds lists or the like", "give numbers, text, booleans or dates") from error
    found: Counter[str] = Counter()
    for value, count in every.items():
        if value is not None and value == value:
            found[text(value)] += count
    return tuple(sorted(found, key=lambda value: (-found[value], value))[:most])


def _segments(column: Array) -> tuple[str, ...]:
    return tuple(sorted(_common(column, MOST_SEGMENTS)))


def number_axis(name: str, column: Array, picks: Any = slice(None)) -> Axis:
    """Cut into parts of equally many rows, as far as equal values let it."""
    values = _ascending(column[picks])
    if not len(values):
        return Axis(name)
    low, high = (float(values[0]), float(values[-1])) if len(column[picks]) == len(column) else _range(column)
    trim = len(values) // 1000
    inner = values[trim : len(values) - trim]
    top = float(max(abs(inner[0]), abs(inner[-1]))) or 1.0  # In parts of it: the sum of large numbers is none.
    mean = top * float(np.mean(inner / top))
    bare = Axis(name, low=low, high=high, mean=mean, std=top * float(np.std(inner / top)))
    quarter = values[[len(values) // 4, len(values) // 2, (3 * len(values)) // 4]]
    scale = min(2 * float(quarter[2] / 2.698 - quarter[0] / 2.698), 1e308)
    bare = replace(bare, centre=float(quarter[1]), scale=scale if scale > abs(mean) * 1e-12 else spread(bare))
    count = min(MOST_EDGES, max(1, len(values) // 8))
    wanted = values[(np.arange(1, count + 1) * len(values)) // (count + 1)]
    edges = true_edges(wanted, *frame(bare), low, high)
    return replace(bare, edges=tuple(edges.tolist()))


def _ascending(column: Array) -> Floats:
    """Its finite values as numbers, sorted; as narrow as they came, which takes half the time."""
    values = np.sort(column if column.dtype == np.float32 else as_numbers(column))
    # Sorted, what is infinite stands at the ends, and what is missing after all.
    first, last = np.searchsorted(values, -np.inf, side="right"), np.searchsorted(values, np.inf, side="left")
    return np.asarray(values[first:last], np.float64)


def _range(column: Array) -> tuple[float, float]:
    """The least and the greatest finite value of all rows."""
    least: list[float] = []
    for first in range(0, len(column), 1 << 16):
        part: Floats = as_numbers(column[first : first + (1 << 16)])
        part = part[np.isfinite(part)]
        least += [float(part.min()), float(part.max())] if len(part) else []
    return min(least), max(least)


def to_json(profile: Profile) -> bytes:
    """As it lies in a model's folder: the same profile has the same bytes."""
    plain = _named(profile) | {"axes": [_named(axis) for axis in profile.axes], "quality": _named(profile.quality)}
    return json.dumps(plain, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def _named(record: Profile | Axis | Quality) -> dict[str, Any]:
    """Its fields as they are: to copy thousands of numbers, one by one, takes longer than to write them."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def digest(profile: Profile) -> str:
    """Which profile it is."""
    return hashlib.sha256(to_json(profile)).hexdigest()


def layout(profile: Profile) -> str:
    """How it cuts, and nothing else: tallies of one layout can be joined and compared."""
    held = _LAYOUTS.get(id(profile))
    if held is not None and held[0] is profile:
        return held[1]
    cuts = [[_named(axis) | {"weight": 0} for axis in profile.axes], profile.segment, profile.segments]
    made = hashlib.sha256(json.dumps(cuts, sort_keys=True).encode()).hexdigest()[:32]
    if len(_LAYOUTS) >= _MOST_LAYOUTS:
        _LAYOUTS.clear()
    _LAYOUTS[id(profile)] = profile, made
    return made


def read_profile(data: bytes) -> Profile:
    """A profile from bytes that anybody may have written: Invalid says what is wrong with it."""
    if len(data) > MOST_BYTES:
        raise Invalid(f"the profile has {len(data)} bytes", f"{MOST_BYTES} are the most")
    try:
        found = json.loads(data, parse_constant=_no_constant)
        axes = tuple(_read(Axis, one) for one in found.pop("axes"))
        quality = _read(Quality, found.pop("quality", {}))
        found = {name: _deep(value) for name, value in found.items()}
        found["tensors"] = {name: tuple(names) for name, names in found.get("tensors", {}).items()}
        profile = Profile(axes=axes, quality=quality, **_known(Profile, found))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Invalid("the profile cannot be read", f"write it with falaj.drift.profile: {error!s:.100}") from error
    return checked(profile)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _deep(value: Any) -> Any:
    return tuple(_deep(one) for one in value) if isinstance(value, (list, tuple)) else value


def _known(kind: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that this release knows; a later one may write more."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def _read(kind: type[Any], found: Mapping[str, Any]) -> Any:
    return kind(**{name: _deep(value) for name, value in _known(kind, found).items()})


def checked(profile: Profile) -> Profile:
    """The profile, if every bound holds."""
    for said in faults(profile):
        raise Invalid(f"the profile is no good: {said}", "make it anew")
    return profile
