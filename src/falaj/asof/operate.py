"""What expressions can do with columns: one entry an operation, its rule of types and its work.

The same bits for one row and for a million, on every machine of one libm: sums, products, quotients and roots are exact
by IEEE 754 whatever the instruction set; `log`, `exp` and `**` are not, and numpy's vectorised ones differ between
processors and between the middle and the end of an array, so these go value by value through the C library.

Rules written down: null propagates, except that `&` and `|` know that one false (one true) settles it, that a `when`
whose condition is null is not met, and that `coalesce` is about nulls. Floats divided by zero give inf or nan; whole
numbers divided by zero give null, and so does a whole number that does not fit int64. `/` and `**` give float64.
Numbers of two kinds meet as float64. Texts are compared by code point. Parts of a moment outside the years 1 to 9999
are null.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.calendars import PARTS
from falaj.asof.cells import Array, Cells, blank, known_type
from falaj.core.errors import Invalid

Options = Mapping[str, Any]
Made = Array | tuple[Array, Array]
"""Values, or values and which of them exist."""
WHOLE = ("int32", "int64")
FLOATS = ("float32", "float64")
NUMBERS = (*WHOLE, *FLOATS)
_INT = np.iinfo(np.int64)


class Operation(NamedTuple):
    """How many operands, what type comes of theirs ("" where one is unknown), and the work."""

    least: int
    most: int
    rule: Callable[[Sequence[str], Options], str]
    work: Callable[[str, Options, Sequence[Cells]], Cells]
    options: tuple[str, ...] = ()


def convert(cells: Cells, to: str) -> Cells:
    """As another type; what cannot be said in it becomes null."""
    if cells.type == to or not to:
        return cells
    if cells.type == "null":
        return blank(to, len(cells.values))
    if cells.type in FLOATS and to in (*WHOLE, "time"):
        return _to_whole(cells, to)
    if cells.type == "string" or to == "string":
        return _by_text(cells, to)
    if to == "int32":
        fits = (cells.values >= -(1 << 31)) & (cells.values < 1 << 31)
        return Cells(np.where(fits, cells.values, 0).astype(np.int32), _and(cells.valid, fits), to)
    kinds: dict[str, Any] = {"float32": np.float32, "float64": np.float64, "bool": np.bool_}
    exist = ~np.isnan(cells.values) if to == "bool" and cells.type in FLOATS else None
    return Cells(cells.values.astype(kinds.get(to, np.int64)), _and(cells.valid, exist), to)


def meet(types: Iterable[str]) -> str:
    """The one type in which values of several can stand side by side; "" when it cannot be known yet."""
    rest = {name for name in types if name != "null"}
    if len(rest) < 2:
        return rest.pop() if rest else "null"
    if rest - {""} <= set(NUMBERS):
        return "" if "" in rest else ("int64" if rest <= set(WHOLE) else "float64")
    if "" in rest:
        return meet(rest - {""})
    raise Invalid(f"{' and '.join(sorted(rest))} do not go together", "cast one of them: .cast('string')")


def fits(found: str, wanted: str) -> bool:
    """Whether a result may be kept as a column of type `wanted` without being told to."""
    same = not found or found in (wanted, "null")
    return same or (found in NUMBERS and wanted in FLOATS) or (found in WHOLE and wanted in WHOLE)


def _to_whole(cells: Cells, to: str) -> Cells:
    whole = np.trunc(cells.values.astype(np.float64))
    top = 2.0**31 if to == "int32" else 2.0**63
    good = (whole >= -top) & (whole < top)
    made = np.where(good, whole, 0).astype(np.int32 if to == "int32" else np.int64)
    return Cells(made, _and(cells.valid, good), to)


def _by_text(cells: Cells, to: str) -> Cells:
    if to == "string":
        as_float = cells.type in FLOATS
        values = cells.values.astype(np.float64).tolist() if as_float else cells.values.tolist()
        say: Callable[[Any], str] = repr if as_float else (lambda value: str(value).lower())
        return Cells(np.fromiter(map(say, values), object, len(values)), cells.valid, to)
    read = [_read_number(text, to) for text in cells.values.tolist()]
    good = np.fromiter((value is not None for value in read), np.bool_, len(read))
    kind = "float64" if to in FLOATS else "int64"
    filled = np.fromiter(
        (0 if value is None else value for value in read), np.float64 if kind == "float64" else np.int64, len(read)
    )
    return convert(Cells(filled, _and(cells.valid, good), kind), to)


def _read_number(text: str, to: str) -> float | int | None:
    """Plain ASCII numbers only; Python would also take underscores and the digits of every script."""
    if not text.isascii() or "_" in text or len(text) > 400:
        return None
    try:
        value = float(text) if to in FLOATS else int(text)
    except ValueError:
        return None
    return value if to in FLOATS or _INT.min <= value <= _INT.max else None


def _and(*masks: Array | None) -> Array | None:
    given = [mask for mask in masks if mask is not None]
    return reduce(np.logical_and, given) if given else None


def _plain(function: Callable[..., Made], kinds: str = "") -> Callable[[str, Options, Sequence[Cells]], Cells]:
    """Work on values of one type (the result's, or `kinds`, or where that is "=" what all can be), null with null."""

    def work(out: str, options: Options, cells: Sequence[Cells]) -> Cells:
        kind = meet(part.type for part in cells) if kinds == "=" else kinds or out
        if "null" in (out, kind):
            return blank(out, max(len(part.values) for part in cells))
        cells = [convert(part, kind) for part in cells]
        made = function(*(part.values for part in cells), **options)
        values, exist = made if isinstance(made, tuple) else (made, None)
        return Cells(values, _and(*(part.valid for part in cells), exist), out)

    return work


def _split(whole: Callable[..., Made], real: Callable[..., Made]) -> Callable[..., Made]:
    return lambda *values, **options: (whole if values[0].dtype.kind == "i" else real)(*values, **options)


def _add(a: Array, b: Array) -> Made:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) >= 0


def _subtract(a: Array, b: Array) -> Made:
    rest = a - b
    return rest, ((a ^ b) & (a ^ rest)) >= 0


def _multiply(a: Array, b: Array) -> Made:
    product = a * b
    exist = np.abs(a.astype(np.float64) * b.astype(np.float64)) < 2.0**62
    if not exist.all():  # near the edge floats cannot tell: Python's whole numbers can
        a, b = np.broadcast_arrays(a, b)
        for at in np.flatnonzero(~exist):
            exist[at] = _INT.min <= int(a[at]) * int(b[at]) <= _INT.max
    return product, exist


def _divide_whole(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Made]:
    def work(a: Array, b: Array) -> Made:
        exist = (b != 0) & ~((a == _INT.min) & (b == -1) & (function is np.floor_divide))
        return function(a, np.where(exist & (b != 0), b, 1)), exist

    return work


def _quotient(out: str, options: Options, cells: Sequence[Cells]) -> Cells:
    made = _plain(np.true_divide, "float64")(out, options, cells)
    if cells[0].type in WHOLE and cells[1].type in WHOLE:
        return made._replace(valid=_and(made.valid, np.broadcast_to(cells[1].values != 0, made.values.shape)))
    return made


def _each(function: Callable[..., float]) -> Callable[..., Made]:
    def work(*values: Array) -> Made:
        lists = [part.tolist() for part in np.broadcast_arrays(*values)]
        return np.fromiter(map(function, *lists), np.float64, len(lists[0]))

    return work


def _log(x: float) -> float:
    if x > 0:
        return math.log(x)
    return -math.inf if x == 0 else math.nan


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
    except ValueError:
        if a != 0:
            return math.nan
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf


def _round(values: Array, digits: int = 0) -> Made:
    """Half to even; with digits, of the value times a power of ten."""
    scale = 10.0**digits
    scaled = values * scale
    return np.where(np.isfinite(scaled), np.rint(scaled) / scale, values)


def _at_least(values: Array, low: Array) -> Made:
    # Not np.maximum: which of 0.0 and -0.0 is the larger depends on the instruction set.
    return np.where(values < low, low, values)


def _at_most(values: Array, high: Array) -> Made:
    return np.where(values > high, high, values)


def _texts(function: Callable[..., Any], dtype: Any = object) -> Callable[..., Made]:
    def work(*values: Array) -> Made:
        lists = [part.tolist() for part in np.broadcast_arrays(*values)]
        return np.fromiter(map(function, *lists), dtype, len(lists[0]))

    return work


def _seconds(a: Array, b: Array) -> Made:
    rest, exist = _subtract(b, a)
    return np.asarray(rest) / 1e6, exist


def _logic(settles: bool) -> Callable[[str, Options, Sequence[Cells]], Cells]:
    """`and` is settled by one false, `or` by one true, whatever else is null."""

    def work(out: str, _options: Options, cells: Sequence[Cells]) -> Cells:
        a, b = (convert(part, "bool") for part in cells)
        sure = [
            part.values == settles if part.valid is None else part.valid & (part.values == settles) for part in (a, b)
        ]
        settled = sure[0] | sure[1]
        both = _and(a.valid, b.valid)
        values = np.where(settled, settles, not settles)
        return Cells(values, None if both is None else settled | both, out)

    return work


def _choose(out: str, _options: Options, cells: Sequence[Cells]) -> Cells:
    size = max(len(part.values) for part in cells) if all(len(part.values) for part in cells) else 0
    made = blank(out, size) if out == "null" else convert(cells[-1], out)
    values = np.broadcast_to(made.values, size)
    valid = np.broadcast_to(_there(made), size)
    for test, value in reversed([*zip(cells[:-1:2], cells[1:-1:2], strict=True)]):
        met = convert(test, "bool").values & _there(test)
        taken = convert(value, out)
        values = np.where(met, taken.values, values)
        valid = np.where(met, _there(taken), valid)
    return Cells(values, valid, out)


def _coalesce(out: str, options: Options, cells: Sequence[Cells]) -> Cells:
    flat = [part for cell in cells[:-1] for part in (Cells(_there(cell), None, "bool"), cell)]
    return _choose(out, options, [*flat, cells[-1]])


def _is_null(out: str, _options: Options, cells: Sequence[Cells]) -> Cells:
    return Cells(~_there(cells[0]), None, out)


def _there(cells: Cells) -> Array:
    return np.ones(len(cells.values), np.bool_) if cells.valid is None else cells.valid


def _rule(allowed: Sequence[str], out: str = "") -> Callable[[Sequence[str], Options], str]:
    """Operands of these types; comes out as said, or as where they meet (numbers wide)."""

    def rule(types: Sequence[str], _options: Options) -> str:
        for name in types:
            if name not in ("", "null") and not any(name.startswith(option) for option in allowed):
                raise Invalid(f"{name} is not what it works on", f"it takes {', '.join(allowed)}; .cast() makes one")
        met = meet(types)
        return out or {"int32": "int64", "float32": "float64"}.get(met, met)

    return rule


def _compared(types: Sequence[str], _options: Options) -> str:
    if any(name.startswith("list[") for name in types):
        raise Invalid("lists cannot be compared", "compare their .length()")
    meet(types)
    return "bool"


def _chosen(types: Sequence[str], _options: Options) -> str:
    if len(types) % 2 == 0:
        raise Invalid("a choice lacks a value, or what it is otherwise", "when(c).then(a).otherwise(b)")
    _rule(("bool",))(types[:-1:2], {})
    return meet((*types[1:-1:2], types[-1]))


def _cast_rule(types: Sequence[str], options: Options) -> str:
    to = str(options.get("to", ""))
    (found,) = types
    if not known_type(to) or to == "bytes" or to.startswith("list["):
        raise Invalid(f"cannot cast to {to[:80]!r}", f"cast to one of {', '.join(NUMBERS)}, bool, string, time")
    ways = {
        "string": (*NUMBERS, "string"),
        "time": ("int64", "string", "time"),
        "bytes": (),
        "bool": (*NUMBERS, "bool", "string"),
    }
    ways |= dict.fromkeys(FLOATS, (*NUMBERS, "bool", "string"))
    if found.startswith("list[") or to not in ways.get(found, (to,)):
        raise Invalid(f"{found} cannot be cast to {to}", "compute it in the source's query")
    return to


def _cast(out: str, _options: Options, cells: Sequence[Cells]) -> Cells:
    return convert(cells[0], out)


_TEXT, _BOOL, _TIME = _rule(("string",), "string"), _rule(("bool",), "bool"), _rule(("time",), "int64")
_NUMBER, _REAL = _rule(NUMBERS), _rule(NUMBERS, "float64")


def _compare(function: Callable[[Array, Array], Array]) -> Operation:
    return Operation(2, 2, _compared, _plain(lambda a, b: function(a, b).astype(np.bool_), "="))


def _keep(values: Array) -> Made:
    return values


def _absolute(values: Array) -> Made:
    return np.abs(values), values != _INT.min


def _negative(values: Array) -> Made:
    return -values, values != _INT.min


OPERATIONS: dict[str, Operation] = {
    "add": Operation(2, 2, _NUMBER, _plain(_split(_add, np.add))),
    "sub": Operation(2, 2, _NUMBER, _plain(_split(_subtract, np.subtract))),
    "mul": Operation(2, 2, _NUMBER, _plain(_split(_multiply, np.multiply))),
    "div": Operation(2, 2, _REAL, _quotient),
    "floordiv": Operation(2, 2, _NUMBER, _plain(_split(_divide_whole(np.floor_divide), np.floor_divide))),
    "mod": Operation(2, 2, _NUMBER, _plain(_split(_divide_whole(np.remainder), np.remainder))),
    "pow": Operation(2, 2, _REAL, _plain(_each(_power))),
    "neg": Operation(1, 1, _NUMBER, _plain(_split(_negative, np.negative))),
    "abs": Operation(1, 1, _NUMBER, _plain(_split(_absolute, np.abs))),
    "log": Operation(1, 1, _REAL, _plain(_each(_log))),
    "exp": Operation(1, 1, _REAL, _plain(_each(_exp))),
    "sqrt": Operation(1, 1, _REAL, _plain(np.sqrt)),
    "floor": Operation(1, 1, _NUMBER, _plain(_split(_keep, np.floor))),
    "ceil": Operation(1, 1, _NUMBER, _plain(_split(_keep, np.ceil))),
    "round": Operation(1, 1, _NUMBER, _plain(_split(lambda values, digits=0: values, _round)), ("digits",)),
    "at_least": Operation(2, 2, _NUMBER, _plain(_at_least)),
    "at_most": Operation(2, 2, _NUMBER, _plain(_at_most)),
    "is_nan": Operation(1, 1, _rule(NUMBERS, "bool"), _plain(np.isnan, "float64")),
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "and": Operation(2, 2, _BOOL, _logic(False)),
    "or": Operation(2, 2, _BOOL, _logic(True)),
    "not": Operation(1, 1, _BOOL, _plain(np.logical_not)),
    "when": Operation(3, 99, _chosen, _choose),
    "coalesce": Operation(1, 99, lambda types, _options: meet(types), _coalesce),
    "is_null": Operation(1, 1, lambda _types, _options: "bool", _is_null),
    "cast": Operation(1, 1, _cast_rule, _cast, ("to",)),
    "lower": Operation(1, 1, _TEXT, _plain(_texts(str.lower))),
    "upper": Operation(1, 1, _TEXT, _plain(_texts(str.upper))),
    "concat": Operation(1, 99, _TEXT, _plain(_texts(lambda *parts: "".join(parts)))),
    "length": Operation(1, 1, _rule(("string", "bytes", "list["), "int64"), _plain(_texts(len, np.int64), "=")),
    "contains": Operation(2, 2, _rule(("string",), "bool"), _plain(_texts(str.__contains__, np.bool_), "string")),
    **{name: Operation(1, 1, _TIME, _plain(part, "time"), ("zone",)) for name, part in PARTS.items()},
    "seconds_between": Operation(2, 2, _rule(("time",), "float64"), _plain(_seconds, "time")),
}
