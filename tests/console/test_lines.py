"""Lines: what a page shows as a command is what the command line and Python understand."""

import shlex
from typing import Any

import pytest

from falaj.cli.argument_parsing import parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.operation_commands import collect_arguments, create_operation_parser
from falaj.console.recorded_calls import RecordedCall
from falaj.core.argument_binding import bind_arguments
from falaj.core.operation import get_operation
from falaj.core.ref import Ref
from falaj.services import load_service_class

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("jobs", "list", {"state": "running", "project": "fraud"}),
    ("jobs", "show", {"job": Ref.parse("job:fraud/train-1")}),
    ("catalog", "list", {"project": "it's"}),
    ("zones", "check", {"thing": Ref.parse("dataset:fraud/tx@v3"), "to": "eu-west"}),
    ("people", "add", {"name": "layla", "roles": ("data-scientist", "approver")}),
    ("track", "log", {"run": Ref.parse("run:fraud/0f3c"), "params": {"lr": "0.1", "note": "a b"}}),
]


@pytest.mark.parametrize(("desk", "name", "arguments"), CALLS, ids=[f"{desk}.{name}" for desk, name, _ in CALLS])
def test_a_line_means_the_call(desk: str, name: str, arguments: dict[str, Any]) -> None:
    verb = get_operation(load_service_class(desk), name)
    wanted = bind_arguments(verb, (), arguments)
    words = shlex.split(RecordedCall(desk, name, wanted).shell())
    assert words[:3] == ["falaj", desk, name]
    _, found = parse_arguments(CliContext(desk), create_operation_parser(desk, verb), words[3:], is_plain=False)
    assert bind_arguments(verb, (), collect_arguments(desk, verb, found)) == wanted
