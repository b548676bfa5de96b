"""Lines: what a page shows as a command is what the command line and Python understand."""

import shlex
from typing import Any

import pytest

from falaj.cli.frame import Frame
from falaj.cli.parsing import read
from falaj.cli.verbs import given, parser_of
from falaj.console.lines import Line
from falaj.core.bind import bind
from falaj.core.ref import Ref
from falaj.core.verb import verb_of
from falaj.desks import desk_class

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
    verb = verb_of(desk_class(desk), name)
    wanted = bind(verb, (), arguments)
    words = shlex.split(Line(desk, name, wanted).shell())
    assert words[:3] == ["falaj", desk, name]
    _, found = read(Frame(desk), parser_of(desk, verb), words[3:], plain=False)
    assert bind(verb, (), given(desk, verb, found)) == wanted
