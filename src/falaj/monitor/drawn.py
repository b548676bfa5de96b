"""Rows that replicas drew while they counted, read back as answers: what late labels are joined with where the journal
kept nothing. They come out of a tally's sample, so their numbers are those that were answered, to seven digits.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from falaj.core.errors import Corrupt, Invalid
from falaj.core.ref import Ref
from falaj.drift.cutting import number_of, spread
from falaj.drift.packing import unpacked
from falaj.drift.profile import digest
from falaj.drift.records import NUMBER, PREDICTION, Axis, Profile
from falaj.drift.samples import Sample

Answer = tuple[str, list[float], str]
"""What a request is called, what was answered to one of its rows, and whose row it is."""
CHOSEN = "prediction"
SLACK_S = 120.0
"""Clocks differ, and a request runs a little after it was made."""


def drawn(
    serve: Any,
    whose: tuple[str, Ref, int],
    profile: Profile,
    asked: tuple[float, Sequence[float]],
    ids: Collection[str],
    segment: str,
) -> Iterator[Answer]:
    """Rows of these requests, which were made since a moment, and about the moments (in order) that are given, if any.
    They are drawn evenly: of busy hours there are more."""
    (tenant, ref, revision), (since, about), wanted = whose, asked, digest(profile)
    found: list[Sample] = []
    for row in serve.sketches.read(tenant, ref, since):
        near = bisect_left(about, row.at - SLACK_S)
        then = not about or (near < len(about) and about[near] <= row.until + SLACK_S)
        if row.revision == revision and row.profile == wanted and then:
            with suppress(Corrupt, Invalid):  # A damaged one must not hide the others.
                found.append(_only(unpacked(row.data, profile).sample, ids))
    bound = min((one.bound for one in found if len(one.keys)), default=0.0)
    return (row for one in found for row in _rows(one, bound, profile, segment))


def _only(sample: Sample, ids: Collection[str]) -> Sample:
    kept = [at for at, name in enumerate(sample.ids) if name in ids]
    return Sample(sample.values[kept], sample.keys[kept], tuple(sample.ids[at] for at in kept), sample.bound)


def _rows(sample: Sample, bound: float, profile: Profile, segment: str) -> Iterator[Answer]:
    places = {axis.name: at for at, axis in enumerate(profile.axes)}
    judged = [places[name] for name in _judged(profile) if name in places]
    if not judged:
        return
    answers = np.stack([_numbers(profile.axes[at], sample.values[:, at]) for at in judged], axis=1)
    at = places.get(segment, -1)
    groups = _texts(profile.axes[at], sample.values[:, at]) if at >= 0 else [""] * len(sample.ids)
    whole = np.isfinite(answers).all(axis=1) & (sample.keys < bound)
    for place in np.flatnonzero(whole).tolist():
        yield sample.ids[place], answers[place].tolist(), groups[place]


def _judged(profile: Profile) -> Iterable[str]:
    """The columns of the answer that is judged: the one that was when the model was made, else the widest."""
    said = {axis.name for axis in profile.axes if axis.role == PREDICTION and axis.name != CHOSEN}
    tensors = {name: columns for name, columns in profile.tensors.items() if columns and said.issuperset(columns)}
    if (wanted := profile.quality.output) in tensors:
        return tensors[wanted]
    plain = [columns for name, columns in sorted(tensors.items()) if columns != (f"{name}.mean", f"{name}.std")]
    return max(plain, key=len, default=sorted(said) if not profile.tensors else ())


def _numbers(axis: Axis, values: Any) -> Any:
    """What was answered; NaN where that was no number."""
    if axis.kind == NUMBER:
        return values.astype(np.float64) * spread(axis) + axis.mean
    known = np.array([number_of(value) for value in axis.values] + [np.nan], np.float64)
    return known[np.minimum(values, len(axis.values)).astype(np.intp)]


def _texts(axis: Axis, values: Any) -> list[str]:
    """The segment of each row; empty where it is none that was known."""
    if axis.kind == NUMBER:
        return [f"{value:.6g}" if np.isfinite(value) else "" for value in _numbers(axis, values).tolist()]
    known = (*axis.values, "")
    return [known[min(int(value), len(axis.values))] for value in values.tolist()]
