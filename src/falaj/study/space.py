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

Value = float | int | str
Params = dict[str, Value]
MOST_AXES, MOST_CHOICES, LONGEST = 100, 1000, 200
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")
_RANGE = re.compile(r"(?:(float|int|log|logint):)(.+?)\.\.(.+?)(?:/(.+))?")
_HINT = "lr=log:1e-5..1e-1, drop=float:0..0.5, depth=int:2..8, width=64|128|256"


class Axis(NamedTuple):
    """One parameter: a range, or some choices."""

    name: str
    low: float = 0
    high: float = 0
    step: float = 0
    """0: any number between."""
    log: bool = False
    whole: bool = False
    choices: tuple[Value, ...] = ()

    @property
    def values(self) -> tuple[Value, ...]:
        """All of them, where they can be counted; nothing where they cannot."""
        if self.choices or not (self.step or self.whole):
            return self.choices
        return tuple(self._kind(self.low + n * (self.step or 1)) for n in range(min(self._count, MOST_CHOICES + 1)))

    def at(self, part: float) -> Value:
        """The value at a part of the way, from 0 to just below 1; equal parts are equally likely."""
        if self.choices:
            return self.choices[int(part * len(self.choices))]
        if self.step and not self.log:
            return self._kind(self.low + int(part * self._count) * self.step)
        # A whole number stands for all that is nearer to it than to others.
        half = 0.5 if self.whole else 0.0
        low, high = self.low - half, self.high + half
        found = low * (high / low) ** part if self.log else low + (high - low) * part
        return self.fit(found)

    def fit(self, value: Value) -> Value:
        """The nearest value that it has, in few digits; a choice is what it is."""
        return value if isinstance(value, str) or self.choices else self._kind(min(max(value, self.low), self.high))

    @property
    def _count(self) -> int:
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    def _kind(self, number: float) -> Value:
        return round(number) if self.whole else float(f"{number:.12g}")


def read_space(texts: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of a space, or one clear error."""
    axes = tuple(_axis(text) for text in texts)
    if not 0 < len(axes) <= MOST_AXES:
        raise Invalid(f"{len(axes)} parameters to search", f"1 to {MOST_AXES}, for example --space {_HINT}")
    names = [variable(axis.name) for axis in axes]
    for axis, name in zip(axes, names, strict=True):
        if names.count(name) > 1:
            raise Invalid(f"{axis.name} is said twice", f"each parameter once; as a variable it is {name}")
    return axes


def as_texts(given: Any) -> tuple[str, ...]:
    """A space from a file (names with ranges, or with lists of choices) as the flags say it."""
    if isinstance(given, str):
        return tuple(part.strip() for part in given.split(",") if part.strip())
    if not isinstance(given, Mapping):
        return tuple(map(str, given or ()))
    for name, value in given.items():
        if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(v, (list, dict)) for v in value)):
            raise Invalid(
                f"the parameter {name} depends on others, or is a group", "each stands alone; start a sweep a case"
            )
    return tuple(f"{n}={'|'.join(map(str, v)) if isinstance(v, list) else v}" for n, v in given.items())


def grid(axes: Sequence[Axis]) -> int:
    """How many points the grid has; Invalid when an axis cannot be counted."""
    for axis in axes:
        if not 0 < len(axis.values) <= MOST_CHOICES:
            raise Invalid(f"a grid cannot count {axis.name}", f"name its values, or a step: {axis.name}=float:0..1/0.1")
    return math.prod(len(axis.values) for axis in axes)


def corner(axes: Sequence[Axis], number: int) -> Params:
    """The point of the grid with this number, from 0; the last axis changes fastest."""
    found: Params = {}
    for axis in reversed(axes):
        number, at = divmod(number, len(axis.values))
        found[axis.name] = axis.values[at]
    return {axis.name: found[axis.name] for axis in axes}


def variable(name: str) -> str:
    """What a trial's environment calls a parameter."""
    return f"FALAJ_PARAM_{name.upper().replace('-', '_')}"


def flag(name: str, value: Value) -> tuple[str, str]:
    """What a trial's command line calls it."""
    return f"--{name}", text(value)


def text(value: Value) -> str:
    """A value as a program reads it."""
    return repr(value) if isinstance(value, float) else str(value)


def _axis(said: str) -> Axis:
    name, equals, rest = (part.strip() for part in said.partition("="))
    if not equals or not rest or not _NAME.fullmatch(name) or len(said) > LONGEST * 50:
        raise Invalid(f"{said[:80]!r} is no parameter to search", _HINT)
    found = _RANGE.fullmatch(rest)
    if found is not None:
        return _ranged(name, rest, *found.groups())
    if ".." in rest or (":" in rest and "|" not in rest):
        raise Invalid(f"{rest[:80]!r} is no range of {name}", _HINT)
    return Axis(name, choices=_choices(name, rest))


def _ranged(name: str, rest: str, kind: str, *said: str | None) -> Axis:
    try:
        low, high, step = (float(word or 0) for word in said)
    except ValueError:
        raise Invalid(f"{rest[:80]!r} of {name} holds something that is no number", _HINT) from None
    log, whole = kind.startswith("log"), kind.endswith("int")
    if not all(map(math.isfinite, (low, high, step))) or not low < high:
        raise Invalid(f"{name} goes from {low:g} to {high:g}", "the first number is the smaller one")
    if (log and low <= 0) or step < 0 or step > high - low or (log and step):
        raise Invalid(f"{rest[:80]!r} of {name} cannot be", "a logarithm needs numbers above 0, and has no step")
    if whole and any(number != int(number) for number in (low, high, step)):
        raise Invalid(f"{rest[:80]!r} of {name} is not whole", f"say {name}=float:{low:g}..{high:g}")
    return Axis(name, low, high, step or (1 if whole and not log else 0), log, whole)


def _choices(name: str, rest: str) -> tuple[Value, ...]:
    words = [word.strip() for word in rest.split("|")]
    if not all(words) or len(set(words)) < len(words) or len(words) > MOST_CHOICES:
        raise Invalid(f"the choices of {name} are empty, doubled or too many", f"for example {name}=64|128|256")
    for kind in (int, float):
        with suppress(ValueError, OverflowError):
            made = tuple(kind(word) for word in words)
            if all(map(math.isfinite, made)):
                return made
    return tuple(words)
