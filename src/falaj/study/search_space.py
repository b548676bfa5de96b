"""Spaces: what a sweep varies, as people write it, and the values it gives.

lr=log:1e-5..1e-1     a number between, evenly by its logarithm; logint: the same in whole numbers
drop=float:0..0.5     a number between; float:0..0.5/0.1 in steps
depth=int:2..8        a whole number, both ends included; int:2..8/2 in steps
width=64|128|256      one of these
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from falaj.core.errors import Invalid

ParamValue = float | int | str
TrialParams = dict[str, ParamValue]
MAX_AXES, MAX_CHOICES, MAX_CHOICE_LENGTH = 100, 1000, 200
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")
_RANGE = re.compile(r"(?:(float|int|log|logint):)(.+?)\.\.(.+?)(?:/(.+))?")
_SPACE_EXAMPLE = "lr=log:1e-5..1e-1, drop=float:0..0.5, depth=int:2..8, width=64|128|256"


class SpaceAxis(NamedTuple):
    """One parameter: a range, or some choices."""

    name: str
    low: float = 0
    high: float = 0
    step: float = 0
    """0: any number between."""
    log: bool = False
    whole: bool = False
    choices: tuple[ParamValue, ...] = ()

    @property
    def values(self) -> tuple[ParamValue, ...]:
        """All of them, where they can be counted; nothing where they cannot."""
        if self.choices or not (self.step or self.whole):
            return self.choices
        return tuple(
            self._convert_number(self.low + n * (self.step or 1))
            for n in range(min(self._value_count, MAX_CHOICES + 1))
        )

    def at(self, fraction: float) -> ParamValue:
        """The value at a part of the way, from 0 to just below 1; equal parts are equally likely."""
        if self.choices:
            return self.choices[int(fraction * len(self.choices))]
        if self.step and not self.log:
            return self._convert_number(self.low + int(fraction * self._value_count) * self.step)
        # A whole number stands for all that is nearer to it than to others.
        half = 0.5 if self.whole else 0.0
        low, high = self.low - half, self.high + half
        value = low * (high / low) ** fraction if self.log else low + (high - low) * fraction
        return self.fit(value)

    def fit(self, value: ParamValue) -> ParamValue:
        """The nearest value that it has, in few digits; a choice is what it is."""
        return (
            value
            if isinstance(value, str) or self.choices
            else self._convert_number(min(max(value, self.low), self.high))
        )

    @property
    def _value_count(self) -> int:
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    def _convert_number(self, number: float) -> ParamValue:
        return round(number) if self.whole else float(f"{number:.12g}")


def read_space(texts: Sequence[str]) -> tuple[SpaceAxis, ...]:
    """The axes of a space, or one clear error."""
    axes = tuple(_parse_axis(text) for text in texts)
    if not 0 < len(axes) <= MAX_AXES:
        raise Invalid(f"{len(axes)} parameters to search", f"1 to {MAX_AXES}, for example --space {_SPACE_EXAMPLE}")
    names = [to_variable_name(axis.name) for axis in axes]
    for axis, name in zip(axes, names, strict=True):
        if names.count(name) > 1:
            raise Invalid(f"{axis.name} is said twice", f"each parameter once; as a variable it is {name}")
    return axes


def to_space_texts(space: Any) -> tuple[str, ...]:
    """A space from a file (names with ranges, or with lists of choices) as the flags say it."""
    if isinstance(space, str):
        return tuple(part.strip() for part in space.split(",") if part.strip())
    if not isinstance(space, Mapping):
        return tuple(map(str, space or ()))
    for name, value in space.items():
        if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(v, (list, dict)) for v in value)):
            raise Invalid(
                f"the parameter {name} depends on others, or is a group", "each stands alone; start a sweep a case"
            )
    return tuple(f"{n}={'|'.join(map(str, v)) if isinstance(v, list) else v}" for n, v in space.items())


def count_grid_points(axes: Sequence[SpaceAxis]) -> int:
    """How many points the grid has; Invalid when an axis cannot be counted."""
    for axis in axes:
        if not 0 < len(axis.values) <= MAX_CHOICES:
            raise Invalid(f"a grid cannot count {axis.name}", f"name its values, or a step: {axis.name}=float:0..1/0.1")
    return math.prod(len(axis.values) for axis in axes)


def find_grid_point(axes: Sequence[SpaceAxis], number: int) -> TrialParams:
    """The point of the grid with this number, from 0; the last axis changes fastest."""
    params: TrialParams = {}
    for axis in reversed(axes):
        number, index = divmod(number, len(axis.values))
        params[axis.name] = axis.values[index]
    return {axis.name: params[axis.name] for axis in axes}


def to_variable_name(name: str) -> str:
    """What a trial's environment calls a parameter."""
    return f"FALAJ_PARAM_{name.upper().replace('-', '_')}"


def to_flag(name: str, value: ParamValue) -> tuple[str, str]:
    """What a trial's command line calls it."""
    return f"--{name}", format_value(value)


def format_value(value: ParamValue) -> str:
    """A value as a program reads it."""
    return repr(value) if isinstance(value, float) else str(value)


def _parse_axis(axis_text: str) -> SpaceAxis:
    name, equals, range_text = (part.strip() for part in axis_text.partition("="))
    if not equals or not range_text or not _NAME.fullmatch(name) or len(axis_text) > MAX_CHOICE_LENGTH * 50:
        raise Invalid(f"{axis_text[:80]!r} is no parameter to search", _SPACE_EXAMPLE)
    match = _RANGE.fullmatch(range_text)
    if match is not None:
        return _parse_range(name, range_text, *match.groups())
    if ".." in range_text or (":" in range_text and "|" not in range_text):
        raise Invalid(f"{range_text[:80]!r} is no range of {name}", _SPACE_EXAMPLE)
    return SpaceAxis(name, choices=_parse_choices(name, range_text))


def _parse_range(name: str, range_text: str, range_kind: str, *bounds: str | None) -> SpaceAxis:
    try:
        low, high, step = (float(bound or 0) for bound in bounds)
    except ValueError:
        raise Invalid(f"{range_text[:80]!r} of {name} holds something that is no number", _SPACE_EXAMPLE) from None
    log, is_integer = range_kind.startswith("log"), range_kind.endswith("int")
    if not all(map(math.isfinite, (low, high, step))) or not low < high:
        raise Invalid(f"{name} goes from {low:g} to {high:g}", "the first number is the smaller one")
    if (log and low <= 0) or step < 0 or step > high - low or (log and step):
        raise Invalid(f"{range_text[:80]!r} of {name} cannot be", "a logarithm needs numbers above 0, and has no step")
    if is_integer and any(number != int(number) for number in (low, high, step)):
        raise Invalid(f"{range_text[:80]!r} of {name} is not whole", f"say {name}=float:{low:g}..{high:g}")
    return SpaceAxis(name, low, high, step or (1 if is_integer and not log else 0), log, is_integer)


def _parse_choices(name: str, choices_text: str) -> tuple[ParamValue, ...]:
    choices = [choice.strip() for choice in choices_text.split("|")]
    if not all(choices) or len(set(choices)) < len(choices) or len(choices) > MAX_CHOICES:
        raise Invalid(f"the choices of {name} are empty, doubled or too many", f"for example {name}=64|128|256")
    for number_type in (int, float):
        with suppress(ValueError, OverflowError):
            numbers = tuple(number_type(choice) for choice in choices)
            if all(map(math.isfinite, numbers)):
                return numbers
    return tuple(choices)
