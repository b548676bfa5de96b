"""Errands: found by their mark, typed like verbs, and reachable from the SDK and the command line alike."""

import sys
import types
from typing import Annotated, Any

import pytest

from falaj.core.errand import ERRAND, Here, Silence, errand, errands_of
from falaj.core.ref import Ref


def _module() -> str:
    @errand
    def carry(here: Here, name: Annotated[Ref, "what"], to: Annotated[str, "where"] = "here") -> str:
        """Carry a thing."""
        return f"{name} {to} {here.address}"

    def not_one(here: Here) -> None:
        del here

    module: Any = types.ModuleType("tests_errands")
    module.carry, module.not_one = carry, not_one
    sys.modules["tests_errands"] = module
    return "tests_errands"


def test_an_errand_is_read_like_a_verb() -> None:
    found = errands_of((_module(),))
    assert list(found) == ["carry"]
    verb, function = found["carry"]
    assert (verb.group, [p.name for p in verb.params], verb.summary) == (ERRAND, ["name", "to"], "Carry a thing.")
    assert verb.params[0].type is Ref
    assert function.__name__ == "carry"


def test_a_desk_without_errands_has_none() -> None:
    assert errands_of(()) == {}


def test_silence_is_a_progress_nobody_sees() -> None:
    with Silence().task("working", 10) as task:
        task.advance(3)
        task.resize(None)


def test_an_errand_module_that_is_missing_says_so() -> None:
    with pytest.raises(ModuleNotFoundError):
        errands_of(("falaj.no_such_module",))
