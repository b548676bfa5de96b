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

from falaj.asof.calendar_parts import PARTS
from falaj.asof.column_values import Array, ColumnValues, is_known_type, make_missing
from falaj.core.errors import Invalid

Options = Mapping[str, Any]
OperationResult = Array | tuple[Array, Array]
"""Values, or values and which of them exist."""
INTEGER_TYPES = ("int32", "int64")
FLOAT_TYPES = ("float32", "float64")
NUMERIC_TYPES = (*INTEGER_TYPES, *FLOAT_TYPES)
_INT64_RANGE = np.iinfo(np.int64)


class ExpressionOperation(NamedTuple):
    """How many operands, what type comes of theirs ("" where one is unknown), and the work."""

    least: int
    most: int
    rule: Callable[[Sequence[str], Options], str]
    work: Callable[[str, Options, Sequence[ColumnValues]], ColumnValues]
    options: tuple[str, ...] = ()


def convert_values(values: ColumnValues, target_type: str) -> ColumnValues:
    """As another type; what cannot be said in it becomes null."""
    if values.type == target_type or not target_type:
        return values
    if values.type == "null":
        return make_missing(target_type, len(values.values))
    if values.type in FLOAT_TYPES and target_type in (*INTEGER_TYPES, "time"):
        return _to_integers(values, target_type)
    if values.type == "string" or target_type == "string":
        return _convert_text(values, target_type)
    if target_type == "int32":
        is_in_range = (values.values >= -(1 << 31)) & (values.values < 1 << 31)
        return ColumnValues(
            np.where(is_in_range, values.values, 0).astype(np.int32),
            _combine_masks(values.valid, is_in_range),
            target_type,
        )
    kinds: dict[str, Any] = {"float32": np.float32, "float64": np.float64, "bool": np.bool_}
    is_not_nan = ~np.isnan(values.values) if target_type == "bool" and values.type in FLOAT_TYPES else None
    return ColumnValues(
        values.values.astype(kinds.get(target_type, np.int64)), _combine_masks(values.valid, is_not_nan), target_type
    )


def find_common_type(types: Iterable[str]) -> str:
    """The one type in which values of several can stand side by side; "" when it cannot be known yet."""
    concrete_types = {name for name in types if name != "null"}
    if len(concrete_types) < 2:
        return concrete_types.pop() if concrete_types else "null"
    if concrete_types - {""} <= set(NUMERIC_TYPES):
        return "" if "" in concrete_types else ("int64" if concrete_types <= set(INTEGER_TYPES) else "float64")
    if "" in concrete_types:
        return find_common_type(concrete_types - {""})
    raise Invalid(f"{' and '.join(sorted(concrete_types))} do not go together", "cast one of them: .cast('string')")


def can_store(result_type: str, column_type: str) -> bool:
    """Whether a result may be kept as a column of type `column_type` without being told to."""
    is_same_type = not result_type or result_type in (column_type, "null")
    return (
        is_same_type
        or (result_type in NUMERIC_TYPES and column_type in FLOAT_TYPES)
        or (result_type in INTEGER_TYPES and column_type in INTEGER_TYPES)
    )


def _to_integers(values: ColumnValues, target_type: str) -> ColumnValues:
    truncated = np.trunc(values.values.astype(np.float64))
    top = 2.0**31 if target_type == "int32" else 2.0**63
    is_in_range = (truncated >= -top) & (truncated < top)
    integers = np.where(is_in_range, truncated, 0).astype(np.int32 if target_type == "int32" else np.int64)
    return ColumnValues(integers, _combine_masks(values.valid, is_in_range), target_type)


def _convert_text(column: ColumnValues, target_type: str) -> ColumnValues:
    if target_type == "string":
        is_float = column.type in FLOAT_TYPES
        values = column.values.astype(np.float64).tolist() if is_float else column.values.tolist()
        format_value: Callable[[Any], str] = repr if is_float else (lambda value: str(value).lower())
        return ColumnValues(np.fromiter(map(format_value, values), object, len(values)), column.valid, target_type)
    parsed = [_parse_number(text, target_type) for text in column.values.tolist()]
    is_parsed = np.fromiter((value is not None for value in parsed), np.bool_, len(parsed))
    kind = "float64" if target_type in FLOAT_TYPES else "int64"
    filled = np.fromiter(
        (0 if value is None else value for value in parsed), np.float64 if kind == "float64" else np.int64, len(parsed)
    )
    return convert_values(ColumnValues(filled, _combine_masks(column.valid, is_parsed), kind), target_type)


def _parse_number(text: str, target_type: str) -> float | int | None:
    """Plain ASCII numbers only; Python would also take underscores and the digits of every script."""
    if not text.isascii() or "_" in text or len(text) > 400:
        return None
    try:
        value = float(text) if target_type in FLOAT_TYPES else int(text)
    except ValueError:
        return None
    return value if target_type in FLOAT_TYPES or _INT64_RANGE.min <= value <= _INT64_RANGE.max else None


def _combine_masks(*masks: Array | None) -> Array | None:
    present_masks = [mask for mask in masks if mask is not None]
    return reduce(np.logical_and, present_masks) if present_masks else None


def _make_elementwise(
    function: Callable[..., OperationResult], input_type: str = ""
) -> Callable[[str, Options, Sequence[ColumnValues]], ColumnValues]:
    """Work on values of one type (the result's, or `input_type`, or where that is "=" what all can be), null with
    null."""

    def compute_elementwise(result_type: str, options: Options, operands: Sequence[ColumnValues]) -> ColumnValues:
        operand_type = (
            find_common_type(operand.type for operand in operands) if input_type == "=" else input_type or result_type
        )
        if "null" in (result_type, operand_type):
            return make_missing(result_type, max(len(operand.values) for operand in operands))
        operands = [convert_values(operand, operand_type) for operand in operands]
        result = function(*(operand.values for operand in operands), **options)
        values, exist = result if isinstance(result, tuple) else (result, None)
        return ColumnValues(values, _combine_masks(*(operand.valid for operand in operands), exist), result_type)

    return compute_elementwise


def _by_number_kind(
    integer_function: Callable[..., OperationResult], float_function: Callable[..., OperationResult]
) -> Callable[..., OperationResult]:
    return lambda *values, **options: (integer_function if values[0].dtype.kind == "i" else float_function)(
        *values, **options
    )


def _add_integers(a: Array, b: Array) -> OperationResult:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) >= 0


def _subtract_integers(a: Array, b: Array) -> OperationResult:
    difference = a - b
    return difference, ((a ^ b) & (a ^ difference)) >= 0


def _multiply_integers(a: Array, b: Array) -> OperationResult:
    product = a * b
    is_exact = np.abs(a.astype(np.float64) * b.astype(np.float64)) < 2.0**62
    if not is_exact.all():  # near the edge floats cannot tell: Python's whole numbers can
        a, b = np.broadcast_arrays(a, b)
        for position in np.flatnonzero(~is_exact):
            is_exact[position] = _INT64_RANGE.min <= int(a[position]) * int(b[position]) <= _INT64_RANGE.max
    return product, is_exact


def _make_integer_division(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], OperationResult]:
    def divide_integers(a: Array, b: Array) -> OperationResult:
        is_defined = (b != 0) & ~((a == _INT64_RANGE.min) & (b == -1) & (function is np.floor_divide))
        return function(a, np.where(is_defined & (b != 0), b, 1)), is_defined

    return divide_integers


def _divide_values(result_type: str, options: Options, operands: Sequence[ColumnValues]) -> ColumnValues:
    quotient = _make_elementwise(np.true_divide, "float64")(result_type, options, operands)
    if operands[0].type in INTEGER_TYPES and operands[1].type in INTEGER_TYPES:
        return quotient._replace(
            valid=_combine_masks(quotient.valid, np.broadcast_to(operands[1].values != 0, quotient.values.shape))
        )
    return quotient


def _make_scalar_function(function: Callable[..., float]) -> Callable[..., OperationResult]:
    def compute_each(*values: Array) -> OperationResult:
        lists = [operand.tolist() for operand in np.broadcast_arrays(*values)]
        return np.fromiter(map(function, *lists), np.float64, len(lists[0]))

    return compute_each


def _log_scalar(x: float) -> float:
    if x > 0:
        return math.log(x)
    return -math.inf if x == 0 else math.nan


def _exp_scalar(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _power_scalar(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
    except ValueError:
        if a != 0:
            return math.nan
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf


def _round_values(values: Array, digits: int = 0) -> OperationResult:
    """Half to even; with digits, of the value times a power of ten."""
    scale = 10.0**digits
    scaled = values * scale
    return np.where(np.isfinite(scaled), np.rint(scaled) / scale, values)


def _raise_to_minimum(values: Array, low: Array) -> OperationResult:
    # Not np.maximum: which of 0.0 and -0.0 is the larger depends on the instruction set.
    return np.where(values < low, low, values)


def _cap_at_maximum(values: Array, high: Array) -> OperationResult:
    return np.where(values > high, high, values)


def _make_text_function(function: Callable[..., Any], dtype: Any = object) -> Callable[..., OperationResult]:
    def compute_texts(*values: Array) -> OperationResult:
        lists = [operand.tolist() for operand in np.broadcast_arrays(*values)]
        return np.fromiter(map(function, *lists), dtype, len(lists[0]))

    return compute_texts


def _compute_seconds(a: Array, b: Array) -> OperationResult:
    difference, exist = _subtract_integers(b, a)
    return np.asarray(difference) / 1e6, exist


def _make_logic(settling_value: bool) -> Callable[[str, Options, Sequence[ColumnValues]], ColumnValues]:
    """`and` is settled by one false, `or` by one true, whatever else is null."""

    def compute_logic(result_type: str, _options: Options, operands: Sequence[ColumnValues]) -> ColumnValues:
        a, b = (convert_values(operand, "bool") for operand in operands)
        is_settled_by = [
            operand.values == settling_value
            if operand.valid is None
            else operand.valid & (operand.values == settling_value)
            for operand in (a, b)
        ]
        is_settled = is_settled_by[0] | is_settled_by[1]
        both_valid = _combine_masks(a.valid, b.valid)
        values = np.where(is_settled, settling_value, not settling_value)
        return ColumnValues(values, None if both_valid is None else is_settled | both_valid, result_type)

    return compute_logic


def _compute_choice(result_type: str, _options: Options, operands: Sequence[ColumnValues]) -> ColumnValues:
    size = max(len(operand.values) for operand in operands) if all(len(operand.values) for operand in operands) else 0
    default_values = (
        make_missing(result_type, size) if result_type == "null" else convert_values(operands[-1], result_type)
    )
    values = np.broadcast_to(default_values.values, size)
    valid = np.broadcast_to(_valid_mask(default_values), size)
    for test, value in reversed([*zip(operands[:-1:2], operands[1:-1:2], strict=True)]):
        is_met = convert_values(test, "bool").values & _valid_mask(test)
        case_values = convert_values(value, result_type)
        values = np.where(is_met, case_values.values, values)
        valid = np.where(is_met, _valid_mask(case_values), valid)
    return ColumnValues(values, valid, result_type)


def _compute_coalesce(result_type: str, options: Options, operands: Sequence[ColumnValues]) -> ColumnValues:
    case_operands = [
        part for operand in operands[:-1] for part in (ColumnValues(_valid_mask(operand), None, "bool"), operand)
    ]
    return _compute_choice(result_type, options, [*case_operands, operands[-1]])


def _compute_is_null(result_type: str, _options: Options, operands: Sequence[ColumnValues]) -> ColumnValues:
    return ColumnValues(~_valid_mask(operands[0]), None, result_type)


def _valid_mask(values: ColumnValues) -> Array:
    return np.ones(len(values.values), np.bool_) if values.valid is None else values.valid


def _make_type_rule(allowed: Sequence[str], result_type: str = "") -> Callable[[Sequence[str], Options], str]:
    """Operands of these types; comes out as said, or as where they meet (numbers wide)."""

    def infer_result_type(types: Sequence[str], _options: Options) -> str:
        for name in types:
            if name not in ("", "null") and not any(name.startswith(option) for option in allowed):
                raise Invalid(f"{name} is not what it works on", f"it takes {', '.join(allowed)}; .cast() makes one")
        common_type = find_common_type(types)
        return result_type or {"int32": "int64", "float32": "float64"}.get(common_type, common_type)

    return infer_result_type


def _infer_comparison_type(types: Sequence[str], _options: Options) -> str:
    if any(name.startswith("list[") for name in types):
        raise Invalid("lists cannot be compared", "compare their .length()")
    find_common_type(types)
    return "bool"


def _infer_choice_type(types: Sequence[str], _options: Options) -> str:
    if len(types) % 2 == 0:
        raise Invalid("a choice lacks a value, or what it is otherwise", "when(c).then(a).otherwise(b)")
    _make_type_rule(("bool",))(types[:-1:2], {})
    return find_common_type((*types[1:-1:2], types[-1]))


def _infer_cast_type(types: Sequence[str], options: Options) -> str:
    target_type = str(options.get("to", ""))
    (own_type,) = types
    if not is_known_type(target_type) or target_type == "bytes" or target_type.startswith("list["):
        raise Invalid(
            f"cannot cast to {target_type[:80]!r}", f"cast to one of {', '.join(NUMERIC_TYPES)}, bool, string, time"
        )
    allowed_casts = {
        "string": (*NUMERIC_TYPES, "string"),
        "time": ("int64", "string", "time"),
        "bytes": (),
        "bool": (*NUMERIC_TYPES, "bool", "string"),
    }
    allowed_casts |= dict.fromkeys(FLOAT_TYPES, (*NUMERIC_TYPES, "bool", "string"))
    if own_type.startswith("list[") or target_type not in allowed_casts.get(own_type, (target_type,)):
        raise Invalid(f"{own_type} cannot be cast to {target_type}", "compute it in the source's query")
    return target_type


def _compute_cast(result_type: str, _options: Options, operands: Sequence[ColumnValues]) -> ColumnValues:
    return convert_values(operands[0], result_type)


_TEXT_RULE, _BOOL_RULE, _TIME_RULE = (
    _make_type_rule(("string",), "string"),
    _make_type_rule(("bool",), "bool"),
    _make_type_rule(("time",), "int64"),
)
_NUMBER_RULE, _REAL_RULE = _make_type_rule(NUMERIC_TYPES), _make_type_rule(NUMERIC_TYPES, "float64")


def _make_comparison(function: Callable[[Array, Array], Array]) -> ExpressionOperation:
    return ExpressionOperation(
        2, 2, _infer_comparison_type, _make_elementwise(lambda a, b: function(a, b).astype(np.bool_), "=")
    )


def _keep_values(values: Array) -> OperationResult:
    return values


def _absolute_integers(values: Array) -> OperationResult:
    return np.abs(values), values != _INT64_RANGE.min


def _negate_integers(values: Array) -> OperationResult:
    return -values, values != _INT64_RANGE.min


OPERATIONS: dict[str, ExpressionOperation] = {
    "add": ExpressionOperation(2, 2, _NUMBER_RULE, _make_elementwise(_by_number_kind(_add_integers, np.add))),
    "sub": ExpressionOperation(2, 2, _NUMBER_RULE, _make_elementwise(_by_number_kind(_subtract_integers, np.subtract))),
    "mul": ExpressionOperation(2, 2, _NUMBER_RULE, _make_elementwise(_by_number_kind(_multiply_integers, np.multiply))),
    "div": ExpressionOperation(2, 2, _REAL_RULE, _divide_values),
    "floordiv": ExpressionOperation(
        2, 2, _NUMBER_RULE, _make_elementwise(_by_number_kind(_make_integer_division(np.floor_divide), np.floor_divide))
    ),
    "mod": ExpressionOperation(
        2, 2, _NUMBER_RULE, _make_elementwise(_by_number_kind(_make_integer_division(np.remainder), np.remainder))
    ),
    "pow": ExpressionOperation(2, 2, _REAL_RULE, _make_elementwise(_make_scalar_function(_power_scalar))),
    "neg": ExpressionOperation(1, 1, _NUMBER_RULE, _make_elementwise(_by_number_kind(_negate_integers, np.negative))),
    "abs": ExpressionOperation(1, 1, _NUMBER_RULE, _make_elementwise(_by_number_kind(_absolute_integers, np.abs))),
    "log": ExpressionOperation(1, 1, _REAL_RULE, _make_elementwise(_make_scalar_function(_log_scalar))),
    "exp": ExpressionOperation(1, 1, _REAL_RULE, _make_elementwise(_make_scalar_function(_exp_scalar))),
    "sqrt": ExpressionOperation(1, 1, _REAL_RULE, _make_elementwise(np.sqrt)),
    "floor": ExpressionOperation(1, 1, _NUMBER_RULE, _make_elementwise(_by_number_kind(_keep_values, np.floor))),
    "ceil": ExpressionOperation(1, 1, _NUMBER_RULE, _make_elementwise(_by_number_kind(_keep_values, np.ceil))),
    "round": ExpressionOperation(
        1,
        1,
        _NUMBER_RULE,
        _make_elementwise(_by_number_kind(lambda values, digits=0: values, _round_values)),
        ("digits",),
    ),
    "at_least": ExpressionOperation(2, 2, _NUMBER_RULE, _make_elementwise(_raise_to_minimum)),
    "at_most": ExpressionOperation(2, 2, _NUMBER_RULE, _make_elementwise(_cap_at_maximum)),
    "is_nan": ExpressionOperation(1, 1, _make_type_rule(NUMERIC_TYPES, "bool"), _make_elementwise(np.isnan, "float64")),
    "eq": _make_comparison(np.equal),
    "ne": _make_comparison(np.not_equal),
    "lt": _make_comparison(np.less),
    "le": _make_comparison(np.less_equal),
    "gt": _make_comparison(np.greater),
    "ge": _make_comparison(np.greater_equal),
    "and": ExpressionOperation(2, 2, _BOOL_RULE, _make_logic(False)),
    "or": ExpressionOperation(2, 2, _BOOL_RULE, _make_logic(True)),
    "not": ExpressionOperation(1, 1, _BOOL_RULE, _make_elementwise(np.logical_not)),
    "when": ExpressionOperation(3, 99, _infer_choice_type, _compute_choice),
    "coalesce": ExpressionOperation(1, 99, lambda types, _options: find_common_type(types), _compute_coalesce),
    "is_null": ExpressionOperation(1, 1, lambda _types, _options: "bool", _compute_is_null),
    "cast": ExpressionOperation(1, 1, _infer_cast_type, _compute_cast, ("to",)),
    "lower": ExpressionOperation(1, 1, _TEXT_RULE, _make_elementwise(_make_text_function(str.lower))),
    "upper": ExpressionOperation(1, 1, _TEXT_RULE, _make_elementwise(_make_text_function(str.upper))),
    "concat": ExpressionOperation(
        1, 99, _TEXT_RULE, _make_elementwise(_make_text_function(lambda *parts: "".join(parts)))
    ),
    "length": ExpressionOperation(
        1,
        1,
        _make_type_rule(("string", "bytes", "list["), "int64"),
        _make_elementwise(_make_text_function(len, np.int64), "="),
    ),
    "contains": ExpressionOperation(
        2,
        2,
        _make_type_rule(("string",), "bool"),
        _make_elementwise(_make_text_function(str.__contains__, np.bool_), "string"),
    ),
    **{
        name: ExpressionOperation(1, 1, _TIME_RULE, _make_elementwise(part, "time"), ("zone",))
        for name, part in PARTS.items()
    },
    "seconds_between": ExpressionOperation(
        2, 2, _make_type_rule(("time",), "float64"), _make_elementwise(_compute_seconds, "time")
    ),
}
