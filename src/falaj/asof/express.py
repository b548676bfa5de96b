"""Expressions: features computed from columns, said as plain data: they run anywhere, and nothing is ever `eval`ed.

`col("amount_fils") / 100` builds `{"op": "div", "of": [{"col": "amount_fils"}, {"lit": 100}]}`. The data is what is
kept, sent and fingerprinted. What each operation does, to the last bit, stands in asof/operate.py.
"""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

import numpy as np

from falaj.asof.calendars import zone_known
from falaj.asof.cells import Cells, cells_of, columns_of, to_arrow, to_list
from falaj.asof.operate import OPERATIONS, convert, fits
from falaj.core.errors import Invalid

MAX_DEPTH = 32
MAX_NODES = 500
MAX_TEXT = 10_000
_HINT = 'build it with col("name"), lit(1), when(...), or see docs/features.md for its JSON form'


def _binary(op: str, swapped: bool = False) -> "Callable[[Expr, object], Expr]":
    return lambda one, other: _call(op, other, one) if swapped else _call(op, one, other)


class Expr:
    """An expression under construction; `data` is the plain form."""

    __slots__ = ("data",)

    def __init__(self, data: object) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"Expr({self.data!r})"

    def __bool__(self) -> bool:
        raise Invalid("an expression is neither true nor false before it meets a row", "use & | ~ and when(...)")

    def __hash__(self) -> int:
        return id(self)

    __add__, __radd__ = _binary("add"), _binary("add", swapped=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", swapped=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", swapped=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", swapped=True)
    __floordiv__, __mod__, __pow__ = _binary("floordiv"), _binary("mod"), _binary("pow")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __eq__, __ne__ = _binary("eq"), _binary("ne")  # type: ignore[assignment]
    __and__, __or__ = _binary("and"), _binary("or")

    def __neg__(self) -> "Expr":
        return _call("neg", self)

    def __invert__(self) -> "Expr":
        return _call("not", self)

    def __getattr__(self, name: str) -> "Callable[..., Expr]":
        """Every other operation is a method: .abs() .log() .round(digits=2) .lower() .hour(zone="Asia/Dubai")."""
        if name not in OPERATIONS:
            raise AttributeError(f"expressions have no {name}; they have {', '.join(sorted(OPERATIONS))}")
        return lambda *others, **options: _call(name, self, *others, **options)

    def cast(self, to: str) -> "Expr":
        """As another type; null where the value cannot be said in it."""
        return _call("cast", self, to=to)

    def fill_null(self, value: object) -> "Expr":
        """`value` where there is none."""
        return _call("coalesce", self, value)

    def clip(self, low: object = None, high: object = None) -> "Expr":
        """Not below `low`, not above `high`."""
        raised = self if low is None else _call("at_least", self, low)
        return raised if high is None else _call("at_most", raised, high)


class Choice:
    """`when(...).then(...)`, waiting for the next case or for `otherwise`."""

    __slots__ = ("_cases", "_test")

    def __init__(self, test: object, cases: tuple[object, ...] = ()) -> None:
        self._test, self._cases = test, cases

    def then(self, value: object) -> "Choice":
        """What it is when the condition holds."""
        return Choice(None, (*self._cases, self._test, value))

    def when(self, test: object) -> "Choice":
        """Another case, looked at when none before it holds."""
        return Choice(test, self._cases)

    def otherwise(self, value: object = None) -> Expr:
        """What it is when no case holds; null unless said."""
        return _call("when", *self._cases, value)


def col(name: str) -> Expr:
    """The column of that name."""
    return Expr({"col": name})


def lit(value: object) -> Expr:
    """A constant: None, a bool, a number, a text, bytes, or a datetime with a time zone."""
    if isinstance(value, bytes):
        return Expr({"lit": base64.b64encode(value).decode(), "as": "bytes"})
    if isinstance(value, datetime):
        return Expr({"lit": cells_of([value], "time").values.tolist()[0], "as": "time"})
    if isinstance(value, float) and not math.isfinite(value):
        return Expr({"lit": repr(value), "as": "float64"})  # JSON has no such numbers
    return Expr({"lit": value})


def when(test: Expr) -> Choice:
    """The beginning of a choice: when(c).then(a).when(d).then(b).otherwise(x)."""
    return Choice(test)


def coalesce(*parts: object) -> Expr:
    """The first that is not null."""
    return _call("coalesce", *parts)


def concat(*parts: object) -> Expr:
    """Texts one behind the other."""
    return _call("concat", *parts)


def seconds_between(start: object, end: object) -> Expr:
    """From one moment to another, in seconds; below zero when the end is before the start."""
    return _call("seconds_between", start, end)


def _call(op: str, *operands: object, **options: object) -> Expr:
    of = [(part if isinstance(part, Expr) else lit(part)).data for part in operands]
    return Expr({"op": op, "of": of, **{key: value for key, value in options.items() if value != ""}})


def plain(expression: object) -> object:
    """The plain form of an expression, looked at: no unknown operation, not too deep, not too large."""
    data = expression.data if isinstance(expression, Expr) else expression
    inputs(data)
    return data


def inputs(expression: object) -> tuple[str, ...]:
    """The columns it reads, in order of appearance; raises Invalid for what is no expression."""
    names: dict[str, None] = {}
    for node in _nodes(expression):
        if "col" in node:
            names[str(node["col"])] = None
    return tuple(names)


def check(expression: object, types: Mapping[str, str] | None = None) -> str:
    """The type it gives for columns of these types; without types only its form, and what follows from constants."""
    _nodes(expression)
    return _type(cast(Mapping[str, Any], expression), types)


def evaluate(
    expression: object, columns: object, types: Mapping[str, str] | None = None, *, to: str = "", zone: str = ""
) -> Any:
    """The column it gives: an Arrow array for Arrow tables, batches and columns; a list for lists and numpy arrays.

    `types` says what the columns are where they cannot show it (a list of None); `to` is the type wanted; `zone` that
    of moments without one.
    """
    return Prepared(expression, types, to, zone)(columns)


class Prepared:
    """An expression that was looked at once and is called many times, as `evaluate` is."""

    __slots__ = ("_node", "_to", "_types", "_zone")

    def __init__(
        self, expression: object, types: Mapping[str, str] | None = None, to: str = "", zone: str = ""
    ) -> None:
        self._types = {name: (types or {}).get(name, "") for name in inputs(expression)}
        self._node = cast(Mapping[str, Any], expression)
        self._to, self._zone = to, zone

    def __call__(self, columns: object) -> Any:
        """The column it gives."""
        named = columns_of(columns)
        read: dict[str, Cells] = {}
        for name, kind in self._types.items():
            if name not in named:
                raise Invalid(f"there is no column {name!r}", f"there are {', '.join(sorted(named))[:200]}")
            read[name] = cells_of(named[name], kind, self._zone)
        first: Any = next(iter(named.values()), ())
        with np.errstate(all="ignore"):
            found, to = _run(self._node, read), self._to
            if to and not fits(found.type, to):
                raise Invalid(
                    f"an expression gives {found.type}, not {to}", f"say .cast({to!r}), or call it {found.type}"
                )
            made = _even(convert(found, to), len(first))
        arrow = not isinstance(first, (list, tuple, np.ndarray))
        return to_arrow(made) if arrow else to_list(made)


def _even(cells: Cells, size: int) -> Cells:
    """As long as the table, and with one bit pattern for NaN: the processor chooses which one it makes."""
    values, valid = cells.values, cells.valid
    if len(values) != size:
        values = np.broadcast_to(values, size)
    if valid is not None and len(valid) != size:
        valid = np.broadcast_to(valid, size)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return Cells(values, valid, cells.type)


def _run(node: Mapping[str, Any], columns: Mapping[str, Cells]) -> Cells:
    if "col" in node:
        return columns[node["col"]]
    if "lit" in node:
        return cells_of([_constant(node)], _type(node, None))
    operation = OPERATIONS[node["op"]]
    cells = [_run(part, columns) for part in node["of"]]
    options = {key: node[key] for key in operation.options if key in node}
    return operation.work(operation.rule([part.type for part in cells], options), options, cells)


def _type(node: Mapping[str, Any], types: Mapping[str, str] | None) -> str:
    if "col" in node:
        if types is not None and node["col"] not in types:
            raise Invalid(f"there is no column {node['col']!r}", f"there are {', '.join(sorted(types))[:200]}")
        return (types or {}).get(node["col"], "")
    if "lit" in node:
        kinds: dict[type, str] = {bool: "bool", int: "int64", float: "float64", str: "string", type(None): "null"}
        return str(node.get("as") or kinds[type(node["lit"])])
    operation = OPERATIONS[node["op"]]
    found = [_type(part, types) for part in node["of"]]
    try:
        return operation.rule(found, node)
    except Invalid as error:
        raise Invalid(f"{node['op']}: {error.message}", error.hint) from None


def _nodes(expression: object) -> list[Mapping[str, Any]]:
    """Every node, each looked at; hostile data ends at the limits and not at ours."""
    found: list[Mapping[str, Any]] = []
    waiting: list[tuple[object, int]] = [(expression, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH or len(found) >= MAX_NODES:
            raise Invalid(
                f"an expression is deeper than {MAX_DEPTH} or has over {MAX_NODES} parts", "split the feature in two"
            )
        if not isinstance(node, Mapping) or len({"col", "lit", "op"} & set(node)) != 1:
            raise Invalid("that is no expression", _HINT)
        found.append(node)
        _look(node)
        waiting.extend((part, depth + 1) for part in reversed(node.get("of", ())))
    return found


def _look(node: Mapping[str, Any]) -> None:
    if "col" in node:
        if set(node) != {"col"} or not isinstance(node["col"], str) or not 0 < len(node["col"]) <= 200:
            raise Invalid("a column in an expression has no name", _HINT)
    elif "lit" in node:
        if not set(node) <= {"lit", "as"}:
            raise Invalid("a constant of an expression says too much", _HINT)
        _constant(node)
    else:
        _look_at_call(node)


def _look_at_call(node: Mapping[str, Any]) -> None:
    operation = OPERATIONS.get(node["op"]) if isinstance(node["op"], str) else None
    of = node.get("of")
    if operation is None:
        raise Invalid(f"expressions have no {str(node['op'])[:80]!r}", f"they have {', '.join(sorted(OPERATIONS))}")
    if not isinstance(of, (list, tuple)) or not operation.least <= len(of) <= operation.most:
        many = str(operation.least) if operation.least == operation.most else f"{operation.least} or more"
        raise Invalid(f"{node['op']} does not take what it was given", f"it takes {many}")
    if not set(node) <= {"op", "of", *operation.options}:
        raise Invalid(f"{node['op']} has no such option", f"it has {', '.join(operation.options) or 'none'}")
    digits, zone = node.get("digits", 0), node.get("zone", "")
    if type(digits) is not int or not 0 <= digits <= 15:
        raise Invalid("round() takes from 0 to 15 digits", "col('x').round(digits=2)")
    if not isinstance(zone, str) or not zone_known(zone):
        raise Invalid(f"there is no time zone {str(zone)[:80]!r}", "for example Asia/Dubai, or UTC")


def _constant(node: Mapping[str, Any]) -> object:
    value, kind = node["lit"], node.get("as", "")
    if value is None or type(value) in (bool, int, float, str):
        bounded = not isinstance(value, str) or len(value) <= MAX_TEXT
        if type(value) is int:
            bounded = -(1 << 63) <= value < 1 << 63
        if bounded and not kind:
            return value
        if bounded and kind == "time" and type(value) is int:
            return value
        if kind == "float64" and value in ("inf", "-inf", "nan"):
            return float(value)
        if bounded and kind == "bytes" and isinstance(value, str):
            with suppress(binascii.Error):
                return base64.b64decode(value, validate=True)
    raise Invalid("a constant of an expression is not one", "a bool, a number of 64 bits, a text, bytes or a moment")
