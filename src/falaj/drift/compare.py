"""What came against what a model was made with: which columns are broken, which have moved, and do they go together.

The rule of the house: a difference is an alarm when chance does not explain it, given how many columns and segments
were looked at (Benjamini and Hochberg), and when it is large enough to matter, and when there are enough rows. Of
windows without any drift, at most `Rules.alpha` have an alarm: three families share it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from falaj.drift import measures, mixture
from falaj.drift.frame import Frame
from falaj.drift.measures import Bools, Floats, Ints
from falaj.drift.quality import quality, rates
from falaj.drift.records import LABEL, Finding, Profile, Rules
from falaj.drift.saying import said
from falaj.drift.tally import Tally

_DRIFT, _QUALITY, _TOGETHER = 0.8, 0.1, 0.1
"""Of alpha."""
_A_SEGMENT = 5
"""A segment needs a fifth of the rows of a window."""
_MUCH_MORE = 1.5
_LEAST_TOGETHER = 1 / 8
"""Of `Rules.least_step`: a change of how columns go together is spread over all directions."""


def compare(profile: Profile, tally: Tally, rules: Rules, *, reference: Tally | None = None) -> tuple[Finding, ...]:
    """A window's findings, those that matter most first: broken columns, moved ones, and all together.

    `reference`: what it is compared with in place of the profile's own counts, cut by the same profile.
    """
    frame = Frame(profile)
    if not profile.axes:
        return ()
    ours, theirs = frame.counts(tally), frame.counts(reference)
    broken, stuck = quality(frame, tally, theirs, rules.alpha * _QUALITY, rules)
    moved = _moved(frame, (ours, theirs), stuck, rules, chosen=reference is None)
    joint = _together(profile, tally, rules, reference, broken=any(one.alarm for one in broken))
    weight = {axis.name: axis.weight for axis in profile.axes}
    found = [*broken, *moved, *joint]
    return tuple(sorted(found, key=lambda one: (not one.alarm, -_heed(one, weight), one.column, one.segment)))


def lasting(history: Sequence[Sequence[Finding]], rules: Rules) -> tuple[Finding, ...]:
    """Of the newest window (the last): alarms that so many of the last windows had as well."""
    need, of = rules.persist
    recent = [{_key(one) for one in window if one.alarm} for window in history[-of:]]
    if not recent:
        return ()
    return tuple(one for one in history[-1] if one.alarm and sum(_key(one) in window for window in recent) >= need)


def _key(found: Finding) -> tuple[str, str, str]:
    return found.what, found.column, found.segment


def _heed(found: Finding, weight: dict[str, float]) -> float:
    return weight.get(found.column, 1.0) * found.value


def _moved(frame: Frame, counts: tuple[Ints, Ints], stuck: Bools, rules: Rules, *, chosen: bool) -> list[Finding]:
    """Every column as a whole; of segments, those that show something."""
    ours, theirs = (frame.matrix(one) for one in counts)
    closed = frame.closed(theirs[0])
    for one in (ours, theirs):  # New values of a closed category are a matter of quality.
        one[:, closed, frame.bins[closed] - 1] = 0
    if chosen:
        sure = frame.sure(theirs[0])
        ours, theirs = frame.folded(ours, sure), frame.folded(theirs, sure)
    step, p = _tested(frame, ours, theirs)
    rows, others = ours.sum(-1), theirs.sum(-1)
    need = np.full(len(rows), max(1, rules.least_rows // _A_SEGMENT))
    need[0] = max(1, rules.least_rows)
    tested = (rows >= need[:, None]) & (others >= need[:, None]) & (rows[0] >= need[0]) & ~stuck
    alarm = np.zeros(p.shape, np.bool_)
    alarm[tested] = measures.discoveries(p[tested], rules.alpha * _DRIFT)
    bound = _bound(rows, others, rules)
    alarm &= step >= bound
    shown = alarm.copy()
    # Labels come late, if at all: without them there is nothing to say.
    shown[0] = [axis.role != LABEL or came for axis, came in zip(frame.profile.axes, rows[0] > 0, strict=True)]
    # Where all rows moved, a segment is worth a word only if it moved much more.
    shown[1:] &= ~alarm[0] | (step[1:] >= _MUCH_MORE * step[0])
    places = np.argwhere(shown)
    return _findings(frame, places, (ours, theirs), (step, p, alarm, bound), rates(frame, counts[0]))


def _tested(frame: Frame, ours: Ints, theirs: Ints) -> tuple[Floats, Floats]:
    """[group, axis]: the step, and how often chance makes it."""
    step, p = np.zeros(ours.shape[:2]), np.ones(ours.shape[:2])
    rows, others = ours.sum(-1), theirs.sum(-1)
    one, other = frame.number, ~frame.number
    step[:, one] = measures.ks(ours[:, one], theirs[:, one])
    by_step = measures.ks_p(step[:, one], rows[:, one], others[:, one])
    p[:, one] = np.minimum(1.0, 2 * np.minimum(by_step, measures.rank_p(ours[:, one], theirs[:, one])))
    step[:, other] = measures.total_variation(ours[:, other], theirs[:, other])
    p[:, other] = measures.chi2_p(*measures.chi2(ours[:, other], theirs[:, other]))
    empty = (rows == 0) | (others == 0)
    return np.where(empty, 0.0, step), np.where(empty, 1.0, p)


def _bound(rows: Ints, others: Ints, rules: Rules) -> Floats:
    """The least step that matters, less what a step varies by: one that just matters is not to be missed by luck."""
    noise = 0.5 * np.sqrt(1 / np.maximum(rows, 1) + 1 / np.maximum(others, 1))
    return np.asarray(np.maximum(rules.least_step / 2, rules.least_step - noise), np.float64)


def _findings(
    frame: Frame,
    places: Ints,
    counts: tuple[Ints, Ints],
    tested: tuple[Floats, Floats, Bools, Floats],
    odd: dict[str, Floats],
) -> list[Finding]:
    step, p, alarm, bound = tested
    group, axis = places[:, 0], places[:, 1]
    ours, theirs = counts[0][group, axis], counts[1][group, axis]
    told = _measured(frame, axis, ours, theirs)
    found = []
    for at, (which, where) in enumerate(places.tolist()):
        one = frame.profile.axes[where]
        number = bool(frame.number[where])
        more = {name: round(float(values[at]), 6) for name, values in told.items() if number or name != "distance"}
        if not which:
            more |= {name: round(float(values[where]), 6) for name, values in odd.items()}
        words = said(one, frame.groups[which], frame.profile.segment, (ours[at], theirs[at]), more)
        found.append(
            Finding(
                one.role,
                one.name,
                frame.groups[which],
                "ks" if number else "total variation",
                value=round(float(step[which, where]), 6),
                bound=round(float(bound[which, where]), 6),
                p=float(p[which, where]),
                rows=int(ours[at].sum()),
                alarm=bool(alarm[which, where]),
                said=words,
                measures=more,
            )
        )
    return found


def _measured(frame: Frame, axis: Ints, ours: Ints, theirs: Ints) -> dict[str, Floats]:
    """Measures that are shown and never alarm: each of them alone cries wolf. Numbers by tenths, as is the custom."""
    number = frame.number[axis][:, None]
    tenths = measures.tenths(ours, theirs)
    wide = [np.pad(one, ((0, 0), (0, max(0, ours.shape[1] - one.shape[1])))) for one in tenths]
    a, b = (np.where(number, cut[:, : ours.shape[1]], whole) for cut, whole in zip(wide, (ours, theirs), strict=True))
    return {
        "psi": measures.psi(a, b),
        "js": measures.js(a, b),
        "distance": measures.distance(ours, theirs, frame.places()[axis]),
        "then_rows": theirs.sum(-1).astype(np.float64),
    }


def _together(profile: Profile, tally: Tally, rules: Rules, reference: Tally | None, *, broken: bool) -> list[Finding]:
    """Whether the inputs of a row go together as they did, by sums of random Fourier features."""
    mean, spread = (np.array(one) for one in profile.mixture)
    known = profile.tests.get(mixture.ROWS, 0.0)
    then = (mean * known, known) if reference is None else (reference.mixture, float(reference.mixed))
    if tally.mixed < rules.least_rows or then[1] < rules.least_rows or len(tally.mixture) != len(mean):
        return []
    value = mixture.apart((tally.mixture, float(tally.mixed)), then, spread)
    size = tally.mixed * then[1] / (tally.mixed + then[1])
    effect, p = float(np.sqrt(max(0.0, value - 1) / size)), mixture.chance(value, profile.tests)
    least = rules.least_step * _LEAST_TOGETHER
    alarm = p <= rules.alpha * _TOGETHER and effect >= least and not broken
    words = "inputs go together in another way than they did" if alarm else "inputs go together as they did"
    if broken and p <= rules.alpha * _TOGETHER:
        words = "not judged: columns are broken"
    one = Finding("together", "", "", "mmd", effect, 0.0, least, p, tally.mixed, alarm, f"{words} (mmd {effect:.4f})")
    return [replace(one, measures={"statistic": round(value, 4)})]
