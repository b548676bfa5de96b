"""Whether data are broken: missing, infinite, out of range, never seen before, stuck, or of another kind.

These are no drift: a model must not be trained anew on them. Each has a test that is true for any number of hits, and
a share below which it is harmless.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from falaj.drift.frame import Frame
from falaj.drift.measures import Bools, Floats, Ints, discoveries, ks, ks_p, tail_p
from falaj.drift.records import Axis, Finding, Rules
from falaj.drift.tally import Tally

LEAST = {"missing": 0.01, "infinite": 0.001, "out of range": 0.02, "new values": 0.01, "constant": 1.0, "type": 0.01}
"""Shares of rows."""
_NAMED = 3
_NUMBERS = 0.5
_INSIDE, _CERTAIN = 0.2, 0.001
"""Values that moved out of range have so many of them inside still, and those have moved as well, no doubt."""


class _Test(NamedTuple):
    """One question to every axis: how many rows of how many, now and then."""

    measure: str
    hits: Ints
    rows: Ints
    other_hits: Ints
    others: Ints
    tries: Floats | float = 1.0
    """Of how many rates this is the highest."""


def quality(frame: Frame, tally: Tally, theirs: Ints, alpha: float, rules: Rules) -> tuple[list[Finding], Bools]:
    """What is broken; and which columns are stuck, so that nothing else can be said of them."""
    ours = frame.counts(tally)
    tests = [*_odd(frame, ours, theirs, rules), _new(frame, tally, theirs), _stuck(frame, tally, theirs)]
    p = np.stack([np.minimum(1.0, tail_p(one.hits, one.rows, one.other_hits, one.others) * one.tries) for one in tests])
    share = np.stack([one.hits / np.maximum(one.rows, 1) for one in tests])
    before = np.stack([one.other_hits / np.maximum(one.others, 1) for one in tests])
    least = np.array([LEAST[one.measure] for one in tests])[:, None]
    large = np.where(least < 1, share - before >= least, share >= least)
    enough = np.stack([one.rows for one in tests]) >= rules.least_rows
    alarm = discoveries(p, alpha) & large & enough
    shown = alarm | (large & (p <= rules.alpha))
    found = [
        _finding(frame.profile.axes[axis], tests[test].measure, _row(tests[test], axis), float(p[test, axis]))
        for test, axis in np.argwhere(shown).tolist()
    ]
    found = [_alarmed(one, tally, frame, alarm=bool(alarm[at])) for one, at in zip(found, _places(shown), strict=True)]
    return [*found, *_unfit(frame, tally, alpha, rules)], alarm[-1]


def _places(shown: Bools) -> Iterator[tuple[int, int]]:
    return ((int(test), int(axis)) for test, axis in np.argwhere(shown))


def _odd(frame: Frame, ours: Ints, theirs: Ints, rules: Rules) -> Iterator[_Test]:
    rows, others = _whole(frame, ours), _whole(frame, theirs)
    now, then = ([frame.odd(one, which) for which in range(4)] for one in (ours, theirs))
    yield _Test("missing", now[0], rows, then[0], others)
    yield _Test("infinite", now[1], rows, then[1], others)
    outside = np.where(_moved_out(frame, ours, theirs, rules), 0, now[2] + now[3])
    yield _Test("out of range", outside, rows - now[0], then[2] + then[3], others - then[0])


def _moved_out(frame: Frame, ours: Ints, theirs: Ints, rules: Rules) -> Bools:
    """[axis]: whether values left the range because all of them moved: that is drift. Wrong units and stand-ins for
    missing values leave the others where they were, or none of them inside."""
    now, then = frame.matrix(ours)[0], frame.matrix(theirs)[0]
    came = now.sum(-1)
    for one in (now, then):
        one[:, 0], one[np.arange(len(one)), np.where(frame.number, frame.bins + 1, 0)] = 0, 0
    rows, others, step = now.sum(-1), then.sum(-1), ks(now, then)
    moved = (step >= rules.least_step) & (ks_p(step, rows, others) <= _CERTAIN)
    return np.asarray(frame.number & moved & (rows >= _INSIDE * came), np.bool_)


def _whole(frame: Frame, counts: Ints) -> Ints:
    """[axis]: rows that have this column at all."""
    return np.asarray(np.add.reduceat(counts[0], frame.start[:-1]), np.int64)


def _new(frame: Frame, tally: Tally, theirs: Ints) -> _Test:
    """Of closed categories, all that is new. Of open ones, the commonest that no common one of the reference was."""
    counts = frame.counts(tally)
    ours, before = frame.matrix(counts)[0], frame.matrix(theirs)[0]
    rows, others = _whole(frame, counts), _whole(frame, theirs)
    hits, other_hits = np.zeros_like(rows), np.zeros_like(rows)
    closed, tries = frame.closed(before), np.ones(len(rows))
    for at in np.nonzero(~frame.number)[0].tolist():
        if closed[at]:
            hits[at] = ours[at, frame.bins[at] - 1]
        elif fresh := tally.fresh.get(frame.profile.axes[at].name):
            hits[at], other_hits[at] = max(fresh.values()), before[at, : frame.bins[at]].min()
            tries[at] = max(1.0, tally.unknown_values(at))
    return _Test("new values", hits, rows, other_hits, others, tries)


def _stuck(frame: Frame, tally: Tally, theirs: Ints) -> _Test:
    """Columns with one value in all rows, though the reference had more: how common was that bin?"""
    ours, before = frame.matrix(frame.counts(tally))[0], frame.matrix(theirs)[0]
    rows, others = ours.sum(-1), before.sum(-1)
    top = ours.argmax(-1)
    every = np.arange(len(rows))
    one_bin = (ours[every, top] == rows) & (rows > 0)
    size = np.maximum(rows, 1)
    mean = tally.sums / size
    still = tally.squares / size - mean**2 <= 1e-9 * (1 + mean**2)
    # Sums are cut off far out: there many values look like one.
    inside = (top > 0) & (top <= frame.bins)
    stuck = one_bin & np.where(frame.number, still & inside, top < frame.bins - 1)
    varied = np.where(frame.number, [axis.std > 0 for axis in frame.profile.axes], (before > 0).sum(-1) > 1)
    return _Test("constant", np.where(stuck & varied, rows, 0), rows, _same(frame, before, top), others)


def _same(frame: Frame, before: Ints, top: Ints) -> Ints:
    """How many of the reference were in that bin. It held other values too; that makes the test milder, not wrong."""
    return np.asarray(before[np.arange(len(top)), top], np.int64)


def _row(test: _Test, axis: int) -> tuple[int, int, int, int]:
    return int(test.hits[axis]), int(test.rows[axis]), int(test.other_hits[axis]), int(test.others[axis])


def _finding(axis: Axis, measure: str, row: tuple[int, int, int, int], p: float) -> Finding:
    hits, rows, other_hits, others = row
    now, then = hits / max(1, rows), other_hits / max(1, others)
    said = {
        "missing": f"{axis.name}: {now:.1%} missing, before {then:.1%}",
        "infinite": f"{axis.name}: {now:.2%} infinite, before {then:.2%}",
        "out of range": f"{axis.name}: {now:.1%} outside {axis.low:.4g} to {axis.high:.4g}, before {then:.1%}",
        "new values": f"{axis.name}: {now:.1%} have values that are new",
        "constant": f"{axis.name}: all {rows} rows have the same value; it used to vary",
    }[measure]
    bound = then + LEAST[measure] if LEAST[measure] < 1 else 1.0
    return Finding("quality", axis.name, "", measure, now, then, bound, p, rows, said=said)


def _alarmed(found: Finding, tally: Tally, frame: Frame, *, alarm: bool) -> Finding:
    measure, said = found.measure, found.said
    if measure == "new values":
        axis = next(one for one in frame.profile.axes if one.name == found.column)
        fresh = tally.fresh.get(axis.name, {})
        common = sorted(fresh, key=lambda text: (-fresh[text], text))[:_NAMED]
        said += "".join(f"{', ' if at else ': '}{text[:40]!r} ({fresh[text]})" for at, text in enumerate(common))
        if _kind(axis.values) != _kind(tuple(fresh)):
            measure, said = "type", f"{said}; the reference had {_kind(axis.values)}, these are {_kind(tuple(fresh))}"
    return Finding(
        found.what, found.column, "", measure, found.value, found.then, found.bound, found.p, found.rows, alarm, said
    )


def _kind(values: tuple[str, ...]) -> str:
    numbers = sum(_is_number(value) for value in values)
    return "numbers" if values and numbers > _NUMBERS * len(values) else "texts"


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _unfit(frame: Frame, tally: Tally, alpha: float, rules: Rules) -> Iterator[Finding]:
    """Rows of another shape or type than the profile says."""
    rows = tally.rows + tally.odd
    if not tally.odd:
        return
    others = max(1, frame.profile.rows)
    p = float(tail_p(np.array(tally.odd), np.array(rows), np.array(0), np.array(others)))
    share, least = tally.odd / rows, LEAST["type"]
    alarm = p <= alpha and share >= least and rows >= rules.least_rows
    said = f"{share:.1%} of rows are not of the shape or type that the model's columns had"
    yield Finding("quality", "", "", "type", share, 0.0, least, p, rows, alarm, said)


def rates(frame: Frame, counts: Ints) -> dict[str, Floats]:
    """[axis]: what shares are missing, infinite and out of range, to be shown beside other measures."""
    rows = np.maximum(_whole(frame, counts), 1)
    odd = [frame.odd(counts, which) / rows for which in range(4)]
    return {"missing": odd[0], "infinite": odd[1], "out of range": odd[2] + odd[3]}
