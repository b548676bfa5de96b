"""Expressions: features computed from columns, said as plain data: they run anywhere, and nothing is ever `eval`ed.

`col("amount_fils") / 100` builds `{"op": "div", "of": [{"col": "amount_fils"}, {"lit": 100}]}`. The data is what is
kept, sent and fingerprinted. What each operation does, to the last bit, stands in asof/expression_operations.py.
"""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

import numpy as np

from falaj.asof.calendar_parts import is_known_zone
from falaj.asof.column_values import ColumnValues, to_arrow_array, to_column_mapping, to_column_values, to_python_list
from falaj.asof.expression_operations import OPERATIONS, can_store, convert_values
from falaj.core.errors import Invalid

MAX_DEPTH = 32
MAX_NODES = 500
MAX_TEXT = 10_000
_HINT = 'build it with col("name"), lit(1), when(...), or see docs/features.md for its JSON form'


def _make_binary_method(op: str, is_swapped: bool = False) -> "Callable[[Expression, object], Expression]":
    return lambda operand, right: _build_call(op, right, operand) if is_swapped else _build_call(op, operand, right)


class Expression:
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

    __add__, __radd__ = _make_binary_method("add"), _make_binary_method("add", is_swapped=True)
    __sub__, __rsub__ = _make_binary_method("sub"), _make_binary_method("sub", is_swapped=True)
    __mul__, __rmul__ = _make_binary_method("mul"), _make_binary_method("mul", is_swapped=True)
    __truediv__, __rtruediv__ = _make_binary_method("div"), _make_binary_method("div", is_swapped=True)
    __floordiv__, __mod__, __pow__ = (
        _make_binary_method("floordiv"),
        _make_binary_method("mod"),
        _make_binary_method("pow"),
    )
    __lt__, __le__, __gt__, __ge__ = (
        _make_binary_method("lt"),
        _make_binary_method("le"),
        _make_binary_method("gt"),
        _make_binary_method("ge"),
    )
    __eq__, __ne__ = _make_binary_method("eq"), _make_binary_method("ne")  # type: ignore[assignment]
    __and__, __or__ = _make_binary_method("and"), _make_binary_method("or")

    def __neg__(self) -> "Expression":
        return _build_call("neg", self)

    def __invert__(self) -> "Expression":
        return _build_call("not", self)

    def __getattr__(self, name: str) -> "Callable[..., Expression]":
        """Every other operation is a method: .abs() .log() .round(digits=2) .lower() .hour(zone="Asia/Dubai")."""
        if name not in OPERATIONS:
            raise AttributeError(f"expressions have no {name}; they have {', '.join(sorted(OPERATIONS))}")
        return lambda *others, **options: _build_call(name, self, *others, **options)

    def cast(self, to: str) -> "Expression":
        """As another type; null where the value cannot be said in it."""
        return _build_call("cast", self, to=to)

    def fill_null(self, value: object) -> "Expression":
        """`value` where there is none."""
        return _build_call("coalesce", self, value)

    def clip(self, low: object = None, high: object = None) -> "Expression":
        """Not below `low`, not above `high`."""
        bounded = self if low is None else _build_call("at_least", self, low)
        return bounded if high is None else _build_call("at_most", bounded, high)


class CaseExpression:
    """`when(...).then(...)`, waiting for the next case or for `otherwise`."""

    __slots__ = ("_cases", "_test")

    def __init__(self, test: object, cases: tuple[object, ...] = ()) -> None:
        self._test, self._cases = test, cases

    def then(self, value: object) -> "CaseExpression":
        """What it is when the condition holds."""
        return CaseExpression(None, (*self._cases, self._test, value))

    def when(self, test: object) -> "CaseExpression":
        """Another case, looked at when none before it holds."""
        return CaseExpression(test, self._cases)

    def otherwise(self, value: object = None) -> Expression:
        """What it is when no case holds; null unless said."""
        return _build_call("when", *self._cases, value)


def col(name: str) -> Expression:
    """The column of that name."""
    return Expression({"col": name})


def lit(value: object) -> Expression:
    """A constant: None, a bool, a number, a text, bytes, or a datetime with a time zone."""
    if isinstance(value, bytes):
        return Expression({"lit": base64.b64encode(value).decode(), "as": "bytes"})
    if isinstance(value, datetime):
        return Expression({"lit": to_column_values([value], "time").values.tolist()[0], "as": "time"})
    if isinstance(value, float) and not math.isfinite(value):
        return Expression({"lit": repr(value), "as": "float64"})  # JSON has no such numbers
    return Expression({"lit": value})


def when(test: Expression) -> CaseExpression:
    """The beginning of a choice: when(c).then(a).when(d).then(b).otherwise(x)."""
    return CaseExpression(test)


def coalesce(*parts: object) -> Expression:
    """The first that is not null."""
    return _build_call("coalesce", *parts)


def concat(*parts: object) -> Expression:
    """Texts one behind the other."""
    return _build_call("concat", *parts)


def seconds_between(start: object, end: object) -> Expression:
    """From one moment to another, in seconds; below zero when the end is before the start."""
    return _build_call("seconds_between", start, end)


def _build_call(op: str, *operands: object, **options: object) -> Expression:
    of = [(part if isinstance(part, Expression) else lit(part)).data for part in operands]
    return Expression({"op": op, "of": of, **{key: value for key, value in options.items() if value != ""}})


def to_plain_expression(expression: object) -> object:
    """The plain form of an expression, looked at: no unknown operation, not too deep, not too large."""
    data = expression.data if isinstance(expression, Expression) else expression
    list_input_columns(data)
    return data


def list_input_columns(expression: object) -> tuple[str, ...]:
    """The columns it reads, in order of appearance; raises Invalid for what is no expression."""
    names: dict[str, None] = {}
    for node in _collect_nodes(expression):
        if "col" in node:
            names[str(node["col"])] = None
    return tuple(names)


def infer_type(expression: object, types: Mapping[str, str] | None = None) -> str:
    """The type it gives for columns of these types; without types only its form, and what follows from constants."""
    _collect_nodes(expression)
    return _infer_node_type(cast(Mapping[str, Any], expression), types)


def evaluate_expression(
    expression: object, columns: object, types: Mapping[str, str] | None = None, *, to: str = "", zone: str = ""
) -> Any:
    """The column it gives: an Arrow array for Arrow tables, batches and columns; a list for lists and numpy arrays.

    `types` says what the columns are where they cannot show it (a list of None); `to` is the type wanted; `zone` that
    of moments without one.
    """
    return PreparedExpression(expression, types, to, zone)(columns)


class PreparedExpression:
    """An expression that was looked at once and is called many times, as `evaluate` is."""

    __slots__ = ("_node", "_to", "_types", "_zone")

    def __init__(
        self, expression: object, types: Mapping[str, str] | None = None, to: str = "", zone: str = ""
    ) -> None:
        self._types = {name: (types or {}).get(name, "") for name in list_input_columns(expression)}
        self._node = cast(Mapping[str, Any], expression)
        self._to, self._zone = to, zone

    def __call__(self, columns: object) -> Any:
        """The column it gives."""
        columns_by_name = to_column_mapping(columns)
        input_values: dict[str, ColumnValues] = {}
        for name, kind in self._types.items():
            if name not in columns_by_name:
                raise Invalid(f"there is no column {name!r}", f"there are {', '.join(sorted(columns_by_name))[:200]}")
            input_values[name] = to_column_values(columns_by_name[name], kind, self._zone)
        first: Any = next(iter(columns_by_name.values()), ())
        with np.errstate(all="ignore"):
            result, target_type = _run_node(self._node, input_values), self._to
            if target_type and not can_store(result.type, target_type):
                raise Invalid(
                    f"an expression gives {result.type}, not {target_type}",
                    f"say .cast({target_type!r}), or call it {result.type}",
                )
            normalized = _normalize_result(convert_values(result, target_type), len(first))
        arrow = not isinstance(first, (list, tuple, np.ndarray))
        return to_arrow_array(normalized) if arrow else to_python_list(normalized)


def _normalize_result(result: ColumnValues, size: int) -> ColumnValues:
    """As long as the table, and with one bit pattern for NaN: the processor chooses which one it makes."""
    values, valid = result.values, result.valid
    if len(values) != size:
        values = np.broadcast_to(values, size)
    if valid is not None and len(valid) != size:
        valid = np.broadcast_to(valid, size)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return ColumnValues(values, valid, result.type)


def _run_node(node: Mapping[str, Any], columns: Mapping[str, ColumnValues]) -> ColumnValues:
    if "col" in node:
        return columns[node["col"]]
    if "lit" in node:
        return to_column_values([_read_constant(node)], _infer_node_type(node, None))
    operation = OPERATIONS[node["op"]]
    operands = [_run_node(operand, columns) for operand in node["of"]]
    options = {key: node[key] for key in operation.options if key in node}
    return operation.work(operation.rule([operand.type for operand in operands], options), options, operands)


def _infer_node_type(node: Mapping[str, Any], types: Mapping[str, str] | None) -> str:
    if "col" in node:
        if types is not None and node["col"] not in types:
            raise Invalid(f"there is no column {node['col']!r}", f"there are {', '.join(sorted(types))[:200]}")
        return (types or {}).get(node["col"], "")
    if "lit" in node:
        kinds: dict[type, str] = {bool: "bool", int: "int64", float: "float64", str: "string", type(None): "null"}
        return str(node.get("as") or kinds[type(node["lit"])])
    operation = OPERATIONS[node["op"]]
    operand_types = [_infer_node_type(operand, types) for operand in node["of"]]
    try:
        return operation.rule(operand_types, node)
    except Invalid as error:
        raise Invalid(f"{node['op']}: {error.message}", error.hint) from None


def _collect_nodes(expression: object) -> list[Mapping[str, Any]]:
    """Every node, each looked at; hostile data ends at the limits and not at ours."""
    nodes: list[Mapping[str, Any]] = []
    pending: list[tuple[object, int]] = [(expression, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH or len(nodes) >= MAX_NODES:
            raise Invalid(
                f"an expression is deeper than {MAX_DEPTH} or has over {MAX_NODES} parts", "split the feature in two"
            )
        if not isinstance(node, Mapping) or len({"col", "lit", "op"} & set(node)) != 1:
            raise Invalid("that is no expression", _HINT)
        nodes.append(node)
        _check_node(node)
        pending.extend((operand, depth + 1) for operand in reversed(node.get("of", ())))
    return nodes


def _check_node(node: Mapping[str, Any]) -> None:
    if "col" in node:
        if set(node) != {"col"} or not isinstance(node["col"], str) or not 0 < len(node["col"]) <= 200:
            raise Invalid("a column in an expression has no name", _HINT)
    elif "lit" in node:
        if not set(node) <= {"lit", "as"}:
            raise Invalid("a constant of an expression says too much", _HINT)
        _read_constant(node)
    else:
        _check_call_node(node)


def _check_call_node(node: Mapping[str, Any]) -> None:
    operation = OPERATIONS.get(node["op"]) if isinstance(node["op"], str) else None
    operands = node.get("of")
    if operation is None:
        raise Invalid(f"expressions have no {str(node['op'])[:80]!r}", f"they have {', '.join(sorted(OPERATIONS))}")
    if not isinstance(operands, (list, tuple)) or not operation.least <= len(operands) <= operation.most:
        operand_count = str(operation.least) if operation.least == operation.most else f"{operation.least} or more"
        raise Invalid(f"{node['op']} does not take what it was given", f"it takes {operand_count}")
    if not set(node) <= {"op", "of", *operation.options}:
        raise Invalid(f"{node['op']} has no such option", f"it has {', '.join(operation.options) or 'none'}")
    digits, zone = node.get("digits", 0), node.get("zone", "")
    if type(digits) is not int or not 0 <= digits <= 15:
        raise Invalid("round() takes from 0 to 15 digits", "col('x').round(digits=2)")
    if not isinstance(zone, str) or not is_known_zone(zone):
        raise Invalid(f"there is no time zone {str(zone)[:80]!r}", "for example Asia/Dubai, or UTC")


def _read_constant(node: Mapping[str, Any]) -> object:
    value, kind = node["lit"], node.get("as", "")
    if value is None or type(value) in (bool, int, float, str):
        is_within_limits = not isinstance(value, str) or len(value) <= MAX_TEXT
        if type(value) is int:
            is_within_limits = -(1 << 63) <= value < 1 << 63
        if is_within_limits and not kind:
            return value
        if is_within_limits and kind == "time" and type(value) is int:
            return value
        if kind == "float64" and value in ("inf", "-inf", "nan"):
            return float(value)
        if is_within_limits and kind == "bytes" and isinstance(value, str):
            with suppress(binascii.Error):
                return base64.b64decode(value, validate=True)
    raise Invalid("a constant of an expression is not one", "a bool, a number of 64 bits, a text, bytes or a moment")
