"""Errands: found by their mark, typed like verbs, and reachable from the SDK and the command line alike."""

import sys
import types
from typing import Annotated, Any

import pytest

from falaj.core.client_command import CLIENT_COMMAND_GROUP, Client, NullProgress, client_command, list_client_commands
from falaj.core.ref import Ref


def _module() -> str:
    @client_command
    def carry(here: Client, name: Annotated[Ref, "what"], to: Annotated[str, "where"] = "here") -> str:
        """Carry a thing."""
        return f"{name} {to} {here.address}"

    def not_one(here: Client) -> None:
        del here

    module: Any = types.ModuleType("tests_errands")
    module.carry, module.not_one = carry, not_one
    sys.modules["tests_errands"] = module
    return "tests_errands"


def test_an_errand_is_read_like_a_verb() -> None:
    found = list_client_commands((_module(),))
    assert list(found) == ["carry"]
    verb, function = found["carry"]
    assert (verb.group, [p.name for p in verb.params], verb.summary) == (
        CLIENT_COMMAND_GROUP,
        ["name", "to"],
        "Carry a thing.",
    )
    assert verb.params[0].type is Ref
    assert function.__name__ == "carry"


def test_a_desk_without_errands_has_none() -> None:
    assert list_client_commands(()) == {}


def test_silence_is_a_progress_nobody_sees() -> None:
    with NullProgress().task("working", 10) as task:
        task.advance(3)
        task.resize(None)


def test_an_errand_module_that_is_missing_says_so() -> None:
    with pytest.raises(ModuleNotFoundError):
        list_client_commands(("falaj.no_such_module",))
