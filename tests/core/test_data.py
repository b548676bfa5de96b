"""Our data classes behave as the standard library's do, whatever is asked of them first."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any, ClassVar

import msgspec
import pytest

from falaj.core import data


def _both(make: Any) -> tuple[Any, Any]:
    return make(data.dataclass), make(dataclasses.dataclass)


def _point(dataclass: Any) -> Any:
    @dataclass(frozen=True, slots=True)
    class Point:
        """A point."""

        x: int
        y: float = 2.0
        seen: list[int] = field(default_factory=list, compare=False)
        note: str = field(default="", repr=False)
        cached: int = field(default=7, init=False)
        fresh: dict[str, int] = field(default_factory=dict, init=False, compare=False)
        name: str = field(default="n", kw_only=True)
        mark: str = field(kw_only=True, hash=False, default="m")
        KIND: ClassVar[str] = "point"

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x")

    return Point


@data.dataclass(frozen=True, slots=True)
class Ours:
    """Of ours."""

    a: int
    b: tuple[str, ...] = ()


@data.dataclass(frozen=True, slots=True)
class Loop:
    """One that can hold itself."""

    held: list[Any]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {}),
        ((1, 3.0, [4], "note"), {"name": "z", "mark": "k"}),
        ((), {"x": 5, "seen": [1]}),
        ((), {}),
        ((-1,), {}),
        ((1, 2.0, [], "", 9), {}),
        ((1,), {"cached": 3}),
        ((1,), {"strange": 3}),
    ],
)
def test_is_made_as_the_standard_one_is(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def outcome(cls: Any) -> Any:
        try:
            made = cls(*args, **kwargs)
        except (TypeError, ValueError) as error:
            return type(error), str(error)
        return dataclasses.asdict(made), repr(made), hash(made)

    ours, standard = _both(_point)
    assert outcome(ours) == outcome(standard)
    assert outcome(ours) == outcome(standard)  # and the second time


def test_says_of_itself_what_the_standard_one_says() -> None:
    ours, standard = _both(_point)
    for each in (dataclasses.fields(ours), dataclasses.fields(standard)):
        assert [one.name for one in each] == ["x", "y", "seen", "note", "cached", "fresh", "name", "mark"]
    assert repr(ours.__dataclass_params__) == repr(standard.__dataclass_params__)
    assert ours.__match_args__ == standard.__match_args__
    assert ours.__slots__ == standard.__slots__
    ours(1), standard(1)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(standard).parameters)


def test_compares_and_hashes_before_and_after_anything_else() -> None:
    for cls in _both(_point):
        assert cls(1, seen=[1]) == cls(1, seen=[2])
        assert cls(1) != cls(2)
        assert cls(1) != (1, 2.0)
        assert len({cls(1), cls(1, mark="other"), cls(1)}) == 2
        assert hash(cls(1)) == hash(cls(1, mark="other"))
    nan = float("nan")
    assert Ours(nan) == Ours(nan)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hash(Ours([]))  # type: ignore[arg-type]


def test_nobody_can_change_one() -> None:
    one = Ours(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        one.a = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.strange = 2  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
        del one.a
    assert one.a == 1


def test_heirs_are_made_by_the_standard_one() -> None:
    @data.dataclass(frozen=True, slots=True)
    class Heir(Ours):
        """One more field."""

        c: int = 3

    assert Heir(1, c=4) == Heir(1, (), 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Heir(1).a = 2  # type: ignore[misc]

    class Loose(Ours):
        """No data class itself."""

        def __init__(self, a: int) -> None:
            super().__init__(a)
            self.more = 1

    loose = Loose(4)
    del loose.more
    assert (loose.a, loose != Ours(4)) == (4, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        loose.a = 5  # type: ignore[misc]


def test_is_copied_replaced_pickled_and_matched() -> None:
    one = Ours(1, ("x",))
    for same in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), dataclasses.replace(one)):  # noqa: S301
        assert same == one
    assert dataclasses.replace(one, a=2) == Ours(2, ("x",))
    match one:
        case Ours(a, b):
            assert (a, b) == (1, ("x",))


def test_is_decoded_before_one_was_ever_made() -> None:
    @data.dataclass(frozen=True, slots=True)
    class Never:
        """Not made by hand."""

        a: int
        b: tuple[str, ...] = ()

    assert msgspec.json.decode(b'{"a": 3}', type=Never).a == 3
    assert msgspec.json.encode(Never(3)) == b'{"a":3,"b":[]}'


def test_prints_one_that_holds_itself() -> None:
    loop = Loop([])
    loop.held.append(loop)
    assert repr(loop) == "Loop(held=[...])"


def test_leaves_to_the_standard_one_what_it_does_not_know() -> None:
    @data.dataclass
    class Plain:
        """May be changed."""

        a: int = 1

    @data.dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        """Has an order."""

        a: int

    @data.dataclass(frozen=True, slots=True)
    class Own:
        """Prints itself."""

        a: int

        def __repr__(self) -> str:
            return "own"

    plain = Plain()
    plain.a = 2
    assert (plain, Ordered(1) < Ordered(2), repr(Own(1))) == (Plain(2), True, "own")
    with pytest.raises(TypeError, match="InitVar"):

        @data.dataclass(frozen=True, slots=True)
        class Initial:
            """Takes what it does not keep."""

            a: dataclasses.InitVar[int]


@pytest.mark.parametrize("act", [lambda one: type(one)(1), lambda one: one == copy.copy(one), hash])
def test_what_is_done_often_is_done_by_the_methods_of_the_standard_library(act: Any) -> None:
    one, standard = _point(data.dataclass)(1), _point(dataclasses.dataclass)(1)
    by_hand = [vars(type(one))[name] for name in ("__init__", "__eq__", "__hash__")]
    for _ in range(250):
        act(one)
    assert all(
        vars(type(one))[each] is not hand
        for each, hand in zip(("__init__", "__eq__", "__hash__"), by_hand, strict=True)
    )
    assert type(one)(1) == one
    assert hash(type(one)(1)) == hash(one) == hash(standard)


def test_two_ask_what_its_fields_are() -> None:
    ours = _point(data.dataclass)
    described = ours.__dataclass_fields__
    assert ours.__dataclass_fields__ is described
    assert ours(1).__dataclass_fields__ is described


def test_a_default_that_all_would_share_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @data.dataclass(frozen=True, slots=True)
        class Shared:
            """One list for all."""

            held: list[int] = []  # noqa: RUF012
