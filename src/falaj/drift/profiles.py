"""Making a profile of a reference, and reading one that somebody else may have written."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from falaj.core.errors import Invalid
from falaj.drift.axis_cutting import compute_axes, find_common_values, select_even_rows
from falaj.drift.joint_features import prepare_reference
from falaj.drift.profile_checks import iterate_faults
from falaj.drift.records import (
    KIND_NUMBER,
    MAX_SEGMENTS,
    ROLE_INPUT,
    ROLE_LABEL,
    ROLE_PREDICTION,
    DataProfile,
    ModelQuality,
    ProfileAxis,
)
from falaj.drift.tally import DataTally, to_float_values
from falaj.drift.value_binning import Array, get_spread

MAX_PROFILE_BYTES = 24 << 20
_SEGMENT_SAMPLE_ROWS, _MIXTURE_SAMPLE_ROWS = 100_000, 20_000
"""Rows that say which segments there are, and how columns go together."""
_MAX_LAYOUTS = 64
_LAYOUT_CACHE: dict[int, tuple[DataProfile, str]] = {}
"""Of the profiles that were last used: every tally that is read or written asks for it."""


class ProfileOptions(TypedDict, total=False):
    """What else a profile can be told."""

    label: Array | None
    label_name: str
    segment: str
    source: str
    weights: Mapping[str, float]
    seed: int
    tensors: Mapping[str, tuple[str, ...]]
    quality: ModelQuality


def build_profile(
    columns: Mapping[str, Array], *, predictions: Mapping[str, Array] | None = None, **options: Unpack[ProfileOptions]
) -> DataProfile:
    """A profile of reference rows, all counted as later ones will be."""
    return require_valid(build_unchecked_profile(columns, predictions=predictions, **options))


def build_unchecked_profile(
    columns: Mapping[str, Array], *, predictions: Mapping[str, Array] | None = None, **options: Unpack[ProfileOptions]
) -> DataProfile:
    """The same, for whoever makes more of it and checks that."""
    column_and_role: dict[str, tuple[Array, str]] = {name: (column, ROLE_INPUT) for name, column in columns.items()}
    for name, column in (predictions or {}).items():
        if name in column_and_role:
            raise Invalid(f"{name!r} is an input and a prediction", "give the prediction another name")
        column_and_role[name] = column, ROLE_PREDICTION
    if (label := options.get("label")) is not None:
        column_and_role[options.get("label_name") or "label"] = label, ROLE_LABEL
    rows = _require_same_length(column_and_role)
    weights, segment, seed = options.get("weights", {}), options.get("segment", ""), options.get("seed", 0)
    if segment and segment not in column_and_role:
        raise Invalid(f"there is no column {segment!r} to keep rows apart by", "name an input column")
    arrays = {name: column for name, (column, _) in column_and_role.items()}
    axes, counts = compute_axes(arrays, seed)
    profile = DataProfile(
        tuple(
            replace(axes[name], role=role, weight=float(weights.get(name, 1.0)))
            for name, (_, role) in column_and_role.items()
        ),
        tuple(counts[name] for name in column_and_role),
        rows,
        segment,
        tuple(
            sorted(
                find_common_values(arrays[segment][select_even_rows(rows, _SEGMENT_SAMPLE_ROWS, seed)], MAX_SEGMENTS)
            )
        )
        if segment
        else (),
        tensors=dict(options.get("tensors", {})),
        quality=options.get("quality", ModelQuality()),
        source=options.get("source", ""),
        made_at=time.time(),
    )
    profile = _with_mixture(profile, columns)
    return count_rows(profile, arrays) if segment else profile


def _with_mixture(profile: DataProfile, columns: Mapping[str, Array]) -> DataProfile:
    """How its columns go together, of some rows, drawn from all."""
    axes = [axis for axis in profile.axes if axis.role == ROLE_INPUT and axis.kind == KIND_NUMBER]
    if not axes:
        return profile
    sample_rows = select_even_rows(profile.rows, _MIXTURE_SAMPLE_ROWS, 0)
    scaled = np.empty((len(axes), len(columns[axes[0].name][sample_rows])), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for axis_number, axis in enumerate(axes):
            scaled[axis_number] = (to_float_values(columns[axis.name][sample_rows]) - axis.mean) / get_spread(axis)
    joint_reference = prepare_reference(np.ascontiguousarray(scaled.T))
    return replace(
        profile,
        mixture=(joint_reference.mean, joint_reference.spread),
        tests={**profile.tests, **joint_reference.tests},
    )


def count_rows(profile: DataProfile, columns: Mapping[str, Array]) -> DataProfile:
    """The profile with counts of these rows."""
    tally = DataTally(profile, max_sample_rows=0, seed=0)
    tally.add(columns)
    return with_counts(profile, tally)


def with_counts(profile: DataProfile, tally: DataTally) -> DataProfile:
    """The profile, with what a tally counted as its reference."""
    axis_numbers = range(len(profile.axes))
    segment_numbers = range(len(profile.segments) + 1) if profile.segments else ()
    return replace(
        profile,
        rows=tally.rows,
        counts=tuple(tuple(tally.of(axis_number).tolist()) for axis_number in axis_numbers),
        by_segment=tuple(
            tuple(tuple(tally.of(axis_number, segment_number).tolist()) for axis_number in axis_numbers)
            for segment_number in segment_numbers
        ),
    )


def _require_same_length(column_and_role: Mapping[str, tuple[Array, str]]) -> int:
    if not column_and_role:
        raise Invalid("there are no columns to profile", "give at least one input")
    sizes = {name: column.shape for name, (column, _) in column_and_role.items()}
    rows = next(iter(sizes.values()))[:1]
    for name, shape in sizes.items():
        if shape != rows:
            raise Invalid(f"column {name!r} has the shape {shape}, not {rows}", "give each column a value a row")
    return int(rows[0])


def encode_profile(profile: DataProfile) -> bytes:
    """As it lies in a model's folder: the same profile has the same bytes."""
    fields_by_name = _to_field_dict(profile) | {
        "axes": [_to_field_dict(axis) for axis in profile.axes],
        "quality": _to_field_dict(profile.quality),
    }
    return json.dumps(fields_by_name, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def _to_field_dict(record: DataProfile | ProfileAxis | ModelQuality) -> dict[str, Any]:
    """Its fields as they are: to copy thousands of numbers, one by one, takes longer than to write them."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def hash_profile(profile: DataProfile) -> str:
    """Which profile it is."""
    return hashlib.sha256(encode_profile(profile)).hexdigest()


def get_layout_hash(profile: DataProfile) -> str:
    """How it cuts, and nothing else: tallies of one layout can be joined and compared."""
    cached = _LAYOUT_CACHE.get(id(profile))
    if cached is not None and cached[0] is profile:
        return cached[1]
    cut_fields = [[_to_field_dict(axis) | {"weight": 0} for axis in profile.axes], profile.segment, profile.segments]
    layout_hash = hashlib.sha256(json.dumps(cut_fields, sort_keys=True).encode()).hexdigest()[:32]
    if len(_LAYOUT_CACHE) >= _MAX_LAYOUTS:
        _LAYOUT_CACHE.clear()
    _LAYOUT_CACHE[id(profile)] = profile, layout_hash
    return layout_hash


def read_profile(data: bytes) -> DataProfile:
    """A profile from bytes that anybody may have written: Invalid says what is wrong with it."""
    if len(data) > MAX_PROFILE_BYTES:
        raise Invalid(f"the profile has {len(data)} bytes", f"{MAX_PROFILE_BYTES} are the most")
    try:
        profile_fields = json.loads(data, parse_constant=_reject_constant)
        axes = tuple(_read_record(ProfileAxis, axis_fields) for axis_fields in profile_fields.pop("axes"))
        quality = _read_record(ModelQuality, profile_fields.pop("quality", {}))
        profile_fields = {name: _to_nested_tuple(value) for name, value in profile_fields.items()}
        profile_fields["tensors"] = {name: tuple(names) for name, names in profile_fields.get("tensors", {}).items()}
        profile = DataProfile(axes=axes, quality=quality, **_filter_known_fields(DataProfile, profile_fields))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Invalid("the profile cannot be read", f"write it with falaj.drift.profiles: {error!s:.100}") from error
    return require_valid(profile)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _to_nested_tuple(value: Any) -> Any:
    return tuple(_to_nested_tuple(item) for item in value) if isinstance(value, (list, tuple)) else value


def _filter_known_fields(record_type: type[Any], field_values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that this release knows; a later one may write more."""
    names = {field.name for field in fields(record_type)}
    return {name: value for name, value in field_values.items() if name in names}


def _read_record(record_type: type[Any], field_values: Mapping[str, Any]) -> Any:
    return record_type(
        **{name: _to_nested_tuple(value) for name, value in _filter_known_fields(record_type, field_values).items()}
    )


def require_valid(profile: DataProfile) -> DataProfile:
    """The profile, if every bound holds."""
    for fault in iterate_faults(profile):
        raise Invalid(f"the profile is no good: {fault}", "make it anew")
    return profile
