"""Errors: one small tree, the same on both ends of the wire."""

import pytest

from falaj.core import errors
from falaj.core.errors import FalajError, error_from_wire

TREE = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, FalajError)),
    key=lambda cls: cls.__name__,
)


def test_the_tree_is_small_and_drawn_in_the_docstring() -> None:
    assert len(TREE) <= 13
    assert all(cls.__name__ in (errors.__doc__ or "") for cls in TREE)


def test_codes_and_shell_codes_tell_them_apart() -> None:
    assert len({cls.code for cls in TREE}) == len(TREE)
    assert all(0 < cls.exit_code < 64 for cls in TREE)
    assert all(400 <= cls.status < 600 for cls in TREE)


@pytest.mark.parametrize("cls", TREE)
def test_the_same_class_is_raised_again_at_the_other_end(cls: type[FalajError]) -> None:
    sent = cls("what is true", "what to do", "dataset:a/b")
    got = error_from_wire(sent.wire())
    assert type(got) is cls
    assert got.wire() == sent.wire()
    assert str(got) == "what is true (what to do)"


def test_only_four_fields_travel() -> None:
    assert FalajError("m").wire().keys() == {"code", "message", "hint", "ref"}
    assert str(FalajError("m")) == "m"


@pytest.mark.parametrize("body", [{}, {"code": "new-in-the-next-release", "message": "m"}])
def test_a_code_we_do_not_know_is_still_an_error_of_ours(body: dict[str, str]) -> None:
    got = error_from_wire(body)
    assert type(got) is FalajError
    assert got.message


def test_what_can_be_tried_again_says_so() -> None:
    assert {cls.__name__ for cls in TREE if cls.retry} == {"QuotaExceeded", "StaleRevision", "Unavailable"}
