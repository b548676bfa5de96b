"""What is typed plainly is read as argparse reads it; what is not is left to argparse."""

import subprocess
import sys
from typing import Any

import pytest

from falaj.cli.cli_context import CliContext
from falaj.cli.operation_commands import (
    list_operation_flags,
    list_operations_and_commands,
    parse_by_argparse,
    parse_plainly,
)
from falaj.core.errors import Invalid
from falaj.core.operation import Operation
from falaj.services import SERVICES

VERBS = [(desk, verb) for desk in SERVICES for verb in list_operations_and_commands(desk)]


def _both(desk: str, verb: Operation, arguments: list[str]) -> Any:
    frame = CliContext(desk, at="before", purpose="before")
    plain, whole = parse_plainly(frame, verb, list(arguments)), parse_by_argparse(frame, desk, verb, list(arguments))
    assert plain is not None
    return tuple((one[0], {k: v for k, v in vars(one[1]).items() if v is not None and "common_" not in k})
                 for one in (plain, whole))  # fmt: skip


def _takes_value(desk: str, verb: Operation, flag: str) -> bool:
    try:
        parse_by_argparse(CliContext(desk), desk, verb, [flag, "x"])
    except Invalid:
        return False
    return "x" not in parse_by_argparse(CliContext(desk), desk, verb, [flag, "x"])[1].in_order


@pytest.mark.parametrize(("desk", "verb"), VERBS, ids=[f"{desk}-{verb.name}" for desk, verb in VERBS])
def test_every_flag_of_every_verb(desk: str, verb: Operation) -> None:
    everything = ["first"]
    for number, flag in enumerate(sorted({*list_operation_flags(verb), "--json"})):
        if not _known(desk, verb, flag):
            continue
        if _takes_value(desk, verb, flag):
            several = [[flag, f"v{number}"], [f"{flag}=w=-{number}"], [flag, ""]]
        else:
            several = [[flag]]
        for words in several:
            plain, whole = _both(desk, verb, ["a", *words, "-", "", "b c"])
            assert plain == whole
            everything += [*words, f"between{number}"]
    plain, whole = _both(desk, verb, everything)
    assert plain == whole


def _known(desk: str, verb: Operation, flag: str) -> bool:
    try:
        parse_by_argparse(CliContext(desk), desk, verb, [f"{flag}=x"])
    except Invalid as error:
        return "unrecognized" not in error.message
    return True


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["-h"], ["--labe", "x"], ["--nothing"], ["--label"], ["--", "--label"], ["-x"], ["--json=yes"]),
        *(["--label", "-5"], ["--label", "-"], ["--label", "--json"], ["-5"], ["-a b"]),
    ],
)
def test_what_is_not_plain_is_left_to_argparse(words: list[str]) -> None:
    (publish,) = [verb for desk, verb in VERBS if (desk, verb.name) == ("catalog", "publish")]
    assert parse_plainly(CliContext("catalog"), publish, ["dataset:a/b", *words]) is None


def test_a_plain_command_loads_no_argparse(tmp_path: Any) -> None:
    script = "import sys; from falaj.cli import main; main(sys.argv[1:]); assert 'argparse' not in sys.modules"
    command = [sys.executable, "-c", script, "catalog", "names", "--at", str(tmp_path / "home"), "--kind=model"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
