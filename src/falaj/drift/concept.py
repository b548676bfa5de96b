"""What the truth says once labels have come: does the model err more often, and do its scores mean what they did?

Errors are judged by evidence that may be looked at after every window (streams.Evidence): whoever acts on it is wrong
with a chance of at most alpha, ever. Scores are judged by bins: inputs may have moved, but a score of 0.8 should still
be true eight times in ten.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from falaj.drift.measures import Floats, chi2_p
from falaj.drift.records import BINARY, CLASSES, Finding, Quality, Rules
from falaj.drift.streams import Evidence

_BINS = 10
_LEAST_ROWS = 20
_LEAST_APART = 0.03
"""Truth and what the scores promised, in the mean over all rows; less is harmless."""
_PART = 0.1
"""Of alpha: the other findings of a window have the rest."""
ALPHA = 0.001
"""Of evidence that acts."""


def most_errors(quality: Quality, rules: Rules) -> float | None:
    """The error rate that is still harmless: of the reference, with what its own rows leave open; None: unknown."""
    right = quality.metrics.get("accuracy")
    if right is None or quality.task not in {BINARY, CLASSES} or not quality.rows:
        return None
    rate = min(max(1 - right, 0.0), 1.0)
    noise = 3 * float(np.sqrt(max(rate * (1 - rate), 1 / quality.rows) / quality.rows))
    return float(np.clip(rate + max(noise, rules.least_drop * right), 1e-3, 0.999))


def errors(
    quality: Quality, wrong: ArrayLike, rules: Rules, state: Sequence[float] = ()
) -> tuple[Finding | None, tuple[float, ...]]:
    """Answers whose truth came since the last time, in order: 1 for each that was wrong. And the state to go on from.

    A new revision begins with no state; so does a new reference.
    """
    came = np.asarray(wrong, np.float64).ravel()
    most = most_errors(quality, rules)
    if most is None or not len(came):
        return None, tuple(state)
    evidence = Evidence(most, ALPHA, state)
    evidence.add(came)
    now, then = float(came.mean()), 1 - quality.metrics["accuracy"]
    said = f"{now:.1%} of {len(came)} answers were wrong, before {then:.1%}"
    if evidence.found and now > most:  # Found once is found for ever; but it may be over.
        said += f"; more than {most:.1%} for certain"
    found = Finding(
        "performance", "", "", "errors", now, then, most, evidence.p, len(came), evidence.found and now > most, said
    )
    return found, evidence.state


def calibration(quality: Quality, scores: ArrayLike, truth: ArrayLike, rules: Rules) -> Finding | None:
    """Whether scores mean what they did, however many of each there are now."""
    given, came = np.asarray(scores, np.float64).ravel(), np.asarray(truth, np.float64).ravel()
    known = np.isfinite(given) & np.isfinite(came)
    given, came = given[known], came[known]
    if quality.task != BINARY or not quality.scores or len(given) < rules.least_rows:
        return None
    promised = np.clip(np.interp(given, quality.scores, quality.chances), 1e-4, 1 - 1e-4)
    place = _tenths(promised)
    rows, hits, hoped = (np.bincount(place, one, _BINS) for one in (np.ones(len(given)), came, promised))
    noise = np.bincount(place, promised * (1 - promised), _BINS) + rows**2 * _open(quality, promised, place)
    used = rows >= _LEAST_ROWS
    statistic = float(((hits - hoped)[used] ** 2 / noise[used]).sum())
    p = float(chi2_p(np.array(statistic), np.array(int(used.sum()))))
    apart = float(np.abs(hits - hoped)[used].sum() / max(1.0, rows[used].sum()))
    alarm = p <= rules.alpha * _PART and apart >= _LEAST_APART
    far = int(np.where(used, np.abs(hits - hoped) / np.maximum(rows, 1), -1.0).argmax())
    words = "scores mean something else" if alarm else "scores mean what they did"
    said = (
        f"{words}: where {hoped[far] / max(rows[far], 1):.1%} were to be true, {hits[far] / max(rows[far], 1):.1%} are"
    )
    return Finding(
        "concept", "", "", "calibration", apart, 0.0, _LEAST_APART, p, len(given), alarm, said, {"chi2": statistic}
    )


def _tenths(promised: Floats) -> NDArray[np.intp]:
    """Rows in order of what they promise, in parts of about the same size; the same promise is in the same part."""
    ends = np.unique(np.quantile(promised, np.arange(1, _BINS) / _BINS))
    return np.searchsorted(ends, promised, side="left")


def _open(quality: Quality, promised: Floats, place: NDArray[np.intp]) -> Floats:
    """How wrong the promises of a part may be themselves: they were measured on a tenth of the reference or so."""
    rows = np.maximum(np.bincount(place, minlength=_BINS), 1)
    share = rows / max(1, len(promised))
    spread = np.bincount(place, promised * (1 - promised), _BINS) / rows
    return np.asarray(spread / np.maximum(1.0, quality.rows * share), np.float64)
