"""Every verb is documented, declares what it touches, and is reached through the guard and by no other way."""

import typing

import pytest

from falaj.core.argument_binding import union_members
from falaj.core.client_command import list_client_commands
from falaj.core.operation import Operation, list_operations
from falaj.core.ref import Ref
from falaj.services import SERVICES, list_actions, load_service_class

VERBS = [(desk, verb) for desk in SERVICES for verb in list_operations(load_service_class(desk)).values()]
IDS = [f"{desk}.{verb.name}" for desk, verb in VERBS]
ERRANDS = [(desk, verb) for desk in SERVICES for verb, _ in list_client_commands(SERVICES[desk].errands).values()]
PYTHON = {
    f"{desk}.{verb.name}"
    for desk in SERVICES
    for verb, function in list_client_commands(SERVICES[desk].errands).values()
    if hasattr(function, "__for_python__")
}
"""What only programs say."""
SAID = [*VERBS, *ERRANDS]


@pytest.mark.parametrize(("desk", "verb"), SAID, ids=[f"{desk}.{verb.name}" for desk, verb in SAID])
def test_what_can_be_said_teaches(desk: str, verb: Operation) -> None:
    assert verb.summary, f"{desk}.{verb.name} has no docstring"
    assert verb.summary.endswith("."), f"{desk}.{verb.name}: the summary is not a sentence"
    assert "Example:" in verb.doc, f"{desk}.{verb.name} shows no example"
    python = f"{desk}.{verb.name}" in PYTHON
    shown = f"here.{desk}.{verb.name}" if python else f"falaj {desk} {verb.name.replace('_', '-')}"
    assert shown in verb.doc, f"{desk}.{verb.name}: its example is of another verb"
    assert verb.result is not None, f"{desk}.{verb.name} gives nothing back"


@pytest.mark.parametrize(("desk", "verb"), VERBS, ids=IDS)
def test_every_reference_is_declared(desk: str, verb: Operation) -> None:
    declared = {*verb.reads, *verb.writes}
    names = {param.name for param in verb.params}
    assert declared <= names, f"{desk}.{verb.name} declares what it does not take"
    assert {verb.into, verb.purpose} - {""} <= names, f"{desk}.{verb.name} names a parameter it does not have"
    for param in verb.params:
        if _holds_ref(param.type):
            assert param.name in declared, f"{desk}.{verb.name}: nobody guards {param.name}"


def test_no_errand_hides_a_verb() -> None:
    assert {f"{desk}.{verb.name}" for desk, verb in ERRANDS} & set(IDS) == set()


def test_policy_knows_every_verb_and_no_other() -> None:
    assert list_actions() == {f"{desk}.{verb.name}": verb.group for desk, verb in VERBS}


def test_every_desk_has_a_page() -> None:
    from pathlib import Path

    docs = Path(__file__).parents[2] / "docs"
    assert [desk for desk in SERVICES if not (docs / f"{desk}.md").is_file()] == []


def _holds_ref(kind: object) -> bool:
    return any(
        option is Ref or any(_holds_ref(arg) for arg in typing.get_args(option)) for option in union_members(kind)
    )
