"""Making a profile of a reference, and reading one that somebody else may have written."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from falaj.core.errors import Invalid
from falaj.drift.axes import axes_of, common, even
from falaj.drift.bounds import faults
from falaj.drift.cutting import Array, spread
from falaj.drift.mixture import prepared
from falaj.drift.records import INPUT, LABEL, MOST_SEGMENTS, NUMBER, PREDICTION, Axis, Profile, Quality
from falaj.drift.tally import Tally, as_numbers

MOST_BYTES = 24 << 20
_SAMPLE, _MIXED = 100_000, 20_000
"""Rows that say which segments there are, and how columns go together."""
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
    """A profile of reference rows, all counted as later ones will be."""
    return checked(unchecked(columns, predictions=predictions, **about))


def unchecked(
    columns: Mapping[str, Array], *, predictions: Mapping[str, Array] | None = None, **about: Unpack[About]
) -> Profile:
    """The same, for whoever makes more of it and checks that."""
    every: dict[str, tuple[Array, str]] = {name: (column, INPUT) for name, column in columns.items()}
    for name, column in (predictions or {}).items():
        if name in every:
            raise Invalid(f"{name!r} is an input and a prediction", "give the prediction another name")
        every[name] = column, PREDICTION
    if (label := about.get("label")) is not None:
        every[about.get("label_name") or "label"] = label, LABEL
    rows = _same_length(every)
    weights, segment, seed = about.get("weights", {}), about.get("segment", ""), about.get("seed", 0)
    if segment and segment not in every:
        raise Invalid(f"there is no column {segment!r} to keep rows apart by", "name an input column")
    plain = {name: column for name, (column, _) in every.items()}
    axes, counts = axes_of(plain, seed)
    bare = Profile(
        tuple(
            replace(axes[name], role=role, weight=float(weights.get(name, 1.0))) for name, (_, role) in every.items()
        ),
        tuple(counts[name] for name in every),
        rows,
        segment,
        tuple(sorted(common(plain[segment][even(rows, _SAMPLE, seed)], MOST_SEGMENTS))) if segment else (),
        tensors=dict(about.get("tensors", {})),
        quality=about.get("quality", Quality()),
        source=about.get("source", ""),
        made_at=time.time(),
    )
    bare = _with_mixture(bare, columns)
    return counted(bare, plain) if segment else bare


def _with_mixture(bare: Profile, columns: Mapping[str, Array]) -> Profile:
    """How its columns go together, of some rows, drawn from all."""
    axes = [axis for axis in bare.axes if axis.role == INPUT and axis.kind == NUMBER]
    if not axes:
        return bare
    some = even(bare.rows, _MIXED, 0)
    scaled = np.empty((len(axes), len(columns[axes[0].name][some])), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for at, axis in enumerate(axes):
            scaled[at] = (as_numbers(columns[axis.name][some]) - axis.mean) / spread(axis)
    found = prepared(np.ascontiguousarray(scaled.T))
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
