"""Judges controls by how they operated over a period: samples, exceptions, gaps in time. Pure; figures are data.

"Something is there once" is no operation. A control is operating if every sample of its measures passed and no part of
the period is uncovered; one failed sample or gap makes it "operating with exceptions", each listed; a measure without
the samples it should have, or that cannot be read, makes it "not shown".
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from falaj.comply.records import (
    ATTESTED,
    DOCUMENT,
    EXCEPTIONS,
    NOT_APPLICABLE,
    NOT_SHOWN,
    OPERATING,
    MeasureOperation,
)

MAX_LISTED = 20  # exceptions written into a reason; controls.json has all of them


def compute_operation_status(operation: MeasureOperation) -> str:
    """Return the status of one measure."""
    if operation.unknown:
        return NOT_SHOWN
    if operation.samples == 0:
        return operation.none_means
    if operation.exceptions or operation.gaps:
        return EXCEPTIONS
    return ATTESTED if operation.basis == DOCUMENT else OPERATING


def compute_control_status(operations: Sequence[MeasureOperation]) -> str:
    """Return the status of a control from its measures: the weakest of those that apply."""
    statuses = [compute_operation_status(operation) for operation in operations]
    applying = [status for status in statuses if status != NOT_APPLICABLE]
    if not applying:
        return NOT_APPLICABLE if statuses else NOT_SHOWN
    for status in (NOT_SHOWN, EXCEPTIONS, OPERATING):
        if status in applying:
            return status
    return ATTESTED


def describe_operation(operation: MeasureOperation) -> str:
    """Return one measure in words, made of phrases that words.toml has in Arabic."""
    name = operation.measure if operation.basis == DOCUMENT else operation.measure.replace("-", " ")
    if operation.unknown:
        return f"{name}: not known ({operation.unknown})"
    if operation.basis == DOCUMENT:
        attachment_text = (
            f"attached ({_join_limited(operation.evidence)})"
            if operation.samples
            else "the platform cannot show it, attach a document"
        )
        return f"{name}: {attachment_text}"
    if operation.samples == 0:
        return f"{name}: {'none in this period' if operation.none_means == NOT_APPLICABLE else 'none, must be more'}"
    passed_count = operation.samples - len(operation.exceptions)
    parts = [f"{name}: {passed_count} of {operation.samples}"]
    parts += [f"exceptions: {_join_limited(operation.exceptions)}"] if operation.exceptions else []
    parts += [f"not covered: {_join_limited(operation.gaps)}"] if operation.gaps else []
    return ", ".join(parts)


def split_period(since: float, until: float, days: float) -> list[tuple[float, float]]:
    """Split a period into whole intervals of `days`, from its start; a last, shorter one is left out."""
    interval_s = days * 86_400.0
    count = int((until - since) // interval_s)
    return [
        (since + interval_number * interval_s, since + (interval_number + 1) * interval_s)
        for interval_number in range(count)
    ]


def find_gaps(moments: Sequence[float], since: float, until: float, max_gap_s: float) -> tuple[str, ...]:
    """Return the times longer than `max_gap_s` between two moments, or between one and an end of the period."""
    period_moments = sorted(moment for moment in moments if since <= moment <= until)
    edges = [since, *period_moments, until]
    pairs = pairwise(edges)
    return tuple(format_interval(start, end) for start, end in pairs if end - start > max_gap_s)


def format_interval(since: float, until: float) -> str:
    """Return an interval as two UTC times to the minute."""
    return f"{format_moment(since)}/{format_moment(until)}"


def format_moment(moment: float) -> str:
    """Return a moment as a UTC time to the minute."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _join_limited(texts: Sequence[str]) -> str:
    overflow_text = f" (+{len(texts) - MAX_LISTED})" if len(texts) > MAX_LISTED else ""
    return " | ".join(texts[:MAX_LISTED]) + overflow_text
