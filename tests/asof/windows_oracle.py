"""Windows by brute force, one row at a time: what asof/window_aggregation.py and asof/window_state_operations.py must
both say, bit for bit."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.records import Window


class Row(NamedTuple):
    key: int
    event: int
    created: int
    seq: int
    cells: dict[str, Any]


def oracle(rows: Iterable[Row], key: int, at: int, window: Window, known: int | None = None) -> tuple[Any, bool]:
    """The window's value, and whether there is one."""
    mine = [r for r in rows if r.key == key and r.event <= at and (known is None or r.created <= known)]
    if not mine:
        return None, False
    oldest = (math.floor(Fraction(at - window.over_us, window.hop_us)) + 1) * window.hop_us
    inside = sorted((r for r in mine if r.event >= oldest), key=lambda r: (r.event, r.created, r.seq))
    cells = [r.cells[window.of] for r in inside if r.cells[window.of] is not None] if window.of else inside
    if window.how == "count":
        return len(cells), True
    if window.how == "distinct":
        return len({"nan" if cell != cell else cell for cell in cells}), True
    if not cells:
        return None, False
    if window.how == "last":
        return cells[-window.n :], True
    return _number(window.how, cells), True


def _number(how: str, cells: Sequence[Any]) -> Any:
    if how in ("min", "max"):
        if any(cell != cell for cell in cells):
            return math.nan
        return (min if how == "min" else max)(cells, key=lambda cell: (cell, math.copysign(1, cell)))
    odd = [cell for cell in cells if not math.isfinite(cell)]
    if odd:
        return sum(odd)  # inf - inf is NaN
    total = sum(map(Fraction, cells), Fraction(0))
    if how == "mean":
        return float(total / len(cells))
    return int(total) if isinstance(cells[0], int) else float(total)


def clustered(rows: Sequence[Row], names: Sequence[str], keys: int) -> dict[str, Any]:
    """Columns in the order of (key, event, created, seq)."""
    ranked = sorted(rows, key=lambda r: (r.key, r.event, r.created, r.seq))
    starts = np.searchsorted([r.key for r in ranked], np.arange(keys + 1)).astype(np.int64)
    return {
        "run_starts": starts,
        "event": np.array([r.event for r in ranked], np.int64),
        "created": np.array([r.created for r in ranked], np.int64),
        "seq": np.array([r.seq for r in ranked], np.int64),
        "columns": {name: column([r.cells[name] for r in ranked], DTYPES[name]) for name in names},
    }


DTYPES: dict[str, Any] = {"f": np.float64, "g": np.float32, "i": np.int64, "b": np.bool_, "t": np.int64, "s": None}


def column(cells: list[Any], dtype: Any) -> tuple[Any, np.ndarray]:
    valid = np.array([cell is not None for cell in cells], bool)
    if dtype is None:
        return cells, valid
    return np.array([0 if cell is None else cell for cell in cells], dtype), valid


def same(a: Any, b: Any) -> bool:
    """Equal to the bit; every NaN is one."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    return type(a) is type(b) and bool(a == b)
