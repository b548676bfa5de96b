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
    Operation,
)

MAX_LISTED = 20  # exceptions written into a reason; controls.json has all of them


def operation_status(operation: Operation) -> str:
    """Return the status of one measure."""
    if operation.unknown:
        return NOT_SHOWN
    if operation.samples == 0:
        return operation.none_means
    if operation.exceptions or operation.gaps:
        return EXCEPTIONS
    return ATTESTED if operation.basis == DOCUMENT else OPERATING


def control_status(operations: Sequence[Operation]) -> str:
    """Return the status of a control from its measures: the weakest of those that apply."""
    statuses = [operation_status(operation) for operation in operations]
    applying = [status for status in statuses if status != NOT_APPLICABLE]
    if not applying:
        return NOT_APPLICABLE if statuses else NOT_SHOWN
    for status in (NOT_SHOWN, EXCEPTIONS, OPERATING):
        if status in applying:
            return status
    return ATTESTED


def describe_operation(operation: Operation) -> str:
    """Return one measure in words, made of phrases that words.toml has in Arabic."""
    name = operation.measure if operation.basis == DOCUMENT else operation.measure.replace("-", " ")
    if operation.unknown:
        return f"{name}: not known ({operation.unknown})"
    if operation.basis == DOCUMENT:
        shown = (
            f"attached ({_listed(operation.evidence)})"
            if operation.samples
            else "the platform cannot show it, attach a document"
        )
        return f"{name}: {shown}"
    if operation.samples == 0:
        return f"{name}: {'none in this period' if operation.none_means == NOT_APPLICABLE else 'none, must be more'}"
    passed = operation.samples - len(operation.exceptions)
    parts = [f"{name}: {passed} of {operation.samples}"]
    parts += [f"exceptions: {_listed(operation.exceptions)}"] if operation.exceptions else []
    parts += [f"not covered: {_listed(operation.gaps)}"] if operation.gaps else []
    return ", ".join(parts)


def split_period(since: float, until: float, days: float) -> list[tuple[float, float]]:
    """Split a period into whole intervals of `days`, from its start; a last, shorter one is left out."""
    length = days * 86_400.0
    count = int((until - since) // length)
    return [(since + number * length, since + (number + 1) * length) for number in range(count)]


def find_gaps(moments: Sequence[float], since: float, until: float, longest_s: float) -> tuple[str, ...]:
    """Return the times longer than `longest_s` between two moments, or between one and an end of the period."""
    inside = sorted(moment for moment in moments if since <= moment <= until)
    edges = [since, *inside, until]
    pairs = pairwise(edges)
    return tuple(interval_words(start, end) for start, end in pairs if end - start > longest_s)


def interval_words(since: float, until: float) -> str:
    """Return an interval as two UTC times to the minute."""
    return f"{name_moment(since)}/{name_moment(until)}"


def name_moment(moment: float) -> str:
    """Return a moment as a UTC time to the minute."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _listed(texts: Sequence[str]) -> str:
    more = f" (+{len(texts) - MAX_LISTED})" if len(texts) > MAX_LISTED else ""
    return " | ".join(texts[:MAX_LISTED]) + more
