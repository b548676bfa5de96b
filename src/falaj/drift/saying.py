"""A finding in words: which column, in which segment, from what to what, in its own units."""

from collections.abc import Mapping

import numpy as np

from falaj.drift.frame import quantiles
from falaj.drift.measures import Ints, shares
from falaj.drift.records import NUMBER, Axis


def said(axis: Axis, group: str, segment: str, counts: tuple[Ints, Ints], more: Mapping[str, float]) -> str:
    """Of one column: counts of its bins now and then."""
    ours, theirs = counts
    where = f" where {segment} is {group}" if group else ""
    if not ours.sum():
        return f"{axis.name}{where}: no values"
    if not theirs.sum():
        return f"{axis.name}{where}: the reference had no values"
    words = _number(axis, ours, theirs, more) if axis.kind == NUMBER else _category(axis, ours, theirs)
    return f"{axis.name}{where}: {words}"


def _number(axis: Axis, ours: Ints, theirs: Ints, more: Mapping[str, float]) -> str:
    now, then = quantiles(ours, axis), quantiles(theirs, axis)
    far = more.get("distance", 0.0)
    text = f"median {now[1]:.4g}, before {then[1]:.4g}"
    unit = axis.std or 1.0
    moved, wider = (now[1] - then[1]) / unit, ((now[2] - now[0]) - (then[2] - then[0])) / unit
    if abs(moved) >= abs(wider) and abs(moved) > 1e-9:
        return f"{text} ({'higher' if moved > 0 else 'lower'}; {far:.2f} sd apart)"
    if abs(wider) > 1e-9:
        return f"{text}, {'wider' if wider > 0 else 'narrower'} ({far:.2f} sd apart)"
    return f"{text} ({far:.2f} sd apart)"


def _category(axis: Axis, ours: Ints, theirs: Ints) -> str:
    now, then = shares(ours), shares(theirs)
    at = int(np.abs(now - then).argmax())
    name = repr(axis.values[at][:40]) if at < len(axis.values) else "any other value"
    return f"{now[at]:.1%} are {name}, before {then[at]:.1%}"
