"""The profile of a model on its smaller child: inputs stay what they were, answers are the child's own where there are
rows to ask it about."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from falaj.core.errors import FalajError
from falaj.drift.making import CHOSEN, Columns, columns_of, judged
from falaj.drift.profile import checked, read_profile, to_json
from falaj.drift.records import FILE, MOST_SCORES, PREDICTION, Profile
from falaj.drift.tally import Tally
from falaj.optimize.graphs import Session
from falaj.optimize.parity import asked
from falaj.optimize.rows import Rows

ENOUGH = 1000
"""Fewer rows tell less of the child's answers than what is known of its parent's."""


def carried(parent: str, child: Path, rows: Rows | None) -> tuple[bytes, str]:
    """The child's profile, or why it has none. `rows`: real ones, that it was not made by."""
    path = Path(parent) / FILE
    if not path.is_file():
        return b"", ""
    try:
        profile = read_profile(path.read_bytes())
        session = Session(child)
        known = {one.name for one in (*session.inputs, *session.outputs)}
        if lost := sorted(set(profile.tensors) - known):
            return (
                b"",
                f"its parent's profile names {lost[0][:60]}, which it has not: make one with falaj monitor baseline",
            )
        return to_json(_anew(profile, session, rows) if rows and len(rows) >= ENOUGH else profile), ""
    except (FalajError, ValueError) as error:
        return b"", f"its parent's profile cannot be carried on: {str(error)[:200]}"


def _anew(profile: Profile, session: Session, rows: Rows) -> Profile:
    answers = dict(zip((one.name for one in session.outputs), asked(session.run, rows.inputs), strict=True))
    columns: Columns = {}
    for spec, values in zip(session.inputs, rows.inputs, strict=True):
        columns |= columns_of(spec.name, values, profile.tensors.get(spec.name, ()))
    for name, values in answers.items():
        found = columns_of(name, values, profile.tensors.get(name, ()), most=MOST_SCORES)
        columns |= {one: found[one] for one in profile.tensors.get(name, ()) if one in found}
        if name == profile.quality.output and len(found) > 1:
            columns[CHOSEN] = np.stack(list(found.values()), 1).argmax(1)
    tally = Tally(profile, keep=0, seed=0)
    tally.add(columns)
    ours = [axis.role == PREDICTION and int(tally.of(at).sum()) > 0 for at, axis in enumerate(profile.axes)]
    parts = [
        tuple(tuple(tally.of(at, part).tolist()) if ours[at] else one for at, one in enumerate(counts))
        for part, counts in enumerate(profile.by_segment)
    ]
    whole = tuple(tuple(tally.of(at).tolist()) if ours[at] else one for at, one in enumerate(profile.counts))
    quality, best = profile.quality, profile.quality.output
    if rows.target is not None and best in answers:
        quality = replace(judged(rows.target, answers[best]), output=best)
    more = max(profile.rows, len(rows))
    return checked(replace(profile, counts=whole, by_segment=tuple(parts), quality=quality, rows=more))
