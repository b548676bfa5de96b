"""Our quick dataclass beside the standard one: nobody can tell them apart."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import msgspec
import pytest

from falaj.core import record


def _shapes(dataclass: Any) -> dict[str, Any]:
    @dataclass(frozen=True, slots=True)
    class Empty:
        """Nothing."""

    @dataclass(frozen=True, slots=True)
    class One:
        """One field."""

        value: Any

    @dataclass(frozen=True, slots=True)
    class Full:
        """Everything that is used somewhere."""

        COLUMNS: ClassVar = ("a", "b")
        a: int
        b: str = "b"
        c: tuple[int, ...] = ()
        d: dict[str, int] = field(default_factory=dict, compare=False)
        e: bytes = field(default=b"", repr=False)
        f: int = field(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "f", self.a + 1)

        @property
        def twice(self) -> int:
            return self.a * 2

    return {"Empty": Empty, "One": One, "Full": Full}


OURS, THEIRS = _shapes(record.dataclass), _shapes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Empty", (), {}),
    ("One", (float("nan"),), {}),
    ("Full", (1,), {}),
    ("Full", (1, "x"), {"c": (2,), "d": {"k": 1}, "e": b"e"}),
    ("Full", (2,), {}),
]


@pytest.mark.parametrize(("name", "args", "more"), CALLS)
def test_it_behaves_as_the_standard_one(name: str, args: tuple[Any, ...], more: dict[str, Any]) -> None:
    ours, theirs = OURS[name](*args, **more), THEIRS[name](*args, **more)
    assert repr(ours) == repr(theirs)
    assert hash(ours) == hash(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert msgspec.json.encode(ours) == msgspec.json.encode(theirs)
    assert ours == copy.copy(ours) == dataclasses.replace(ours)
    assert ours != theirs
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
    assert inspect.signature(type(ours)).parameters.keys() == inspect.signature(type(theirs)).parameters.keys()
    assert not hasattr(ours, "__dict__")


def test_equality_is_by_the_compared_fields_of_one_class() -> None:
    full = OURS["Full"]
    assert full(1, d={"k": 1}) == full(1, d={"k": 2})
    assert full(1) != full(2)
    assert full(1) != 1
    assert len({full(1), full(1), full(2)}) == 2
    assert full(1).d is not full(1).d


def test_nothing_can_be_assigned_or_deleted() -> None:
    one = OURS["One"](1)
    with pytest.raises(FrozenInstanceError):
        one.value = 2
    with pytest.raises(FrozenInstanceError):
        del one.value
    with pytest.raises(FrozenInstanceError):
        one.other = 2
    with pytest.raises(TypeError):
        OURS["One"]()


def test_it_is_matched_decoded_and_pickled() -> None:
    match OURS["Full"](1, "x"):
        case object(a=a, b="x"):
            assert a == 1
    got = msgspec.json.decode(b'{"value": [4]}', type=OURS["One"])
    assert got == OURS["One"]([4])
    state = OURS["Full"](3).__getstate__()
    again = OURS["Full"].__new__(OURS["Full"])
    again.__setstate__(pickle.loads(pickle.dumps(state)))  # noqa: S301 - our own
    assert again == OURS["Full"](3)


def test_another_form_is_handed_on() -> None:
    @record.dataclass
    class Open:
        value: int = 0

    opened = Open()
    opened.value = 3
    assert opened == Open(3)
