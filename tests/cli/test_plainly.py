"""What is typed plainly is read as argparse reads it; what is not is left to argparse."""

import subprocess
import sys
from typing import Any

import pytest

from falaj.cli.frame import Frame
from falaj.cli.verbs import flags_of, parsed, plainly, words_of
from falaj.core.errors import Invalid
from falaj.core.verb import Verb
from falaj.desks import DESKS

VERBS = [(desk, verb) for desk in DESKS for verb in words_of(desk)]


def _both(desk: str, verb: Verb, arguments: list[str]) -> Any:
    frame = Frame(desk, at="before", purpose="before")
    plain, whole = plainly(frame, verb, list(arguments)), parsed(frame, desk, verb, list(arguments))
    assert plain is not None
    return tuple((one[0], {k: v for k, v in vars(one[1]).items() if v is not None and "common_" not in k})
                 for one in (plain, whole))  # fmt: skip


def _takes_value(desk: str, verb: Verb, flag: str) -> bool:
    try:
        parsed(Frame(desk), desk, verb, [flag, "x"])
    except Invalid:
        return False
    return "x" not in parsed(Frame(desk), desk, verb, [flag, "x"])[1].in_order


@pytest.mark.parametrize(("desk", "verb"), VERBS, ids=[f"{desk}-{verb.name}" for desk, verb in VERBS])
def test_every_flag_of_every_verb(desk: str, verb: Verb) -> None:
    everything = ["first"]
    for number, flag in enumerate(sorted({*flags_of(verb), "--json"})):
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


def _known(desk: str, verb: Verb, flag: str) -> bool:
    try:
        parsed(Frame(desk), desk, verb, [f"{flag}=x"])
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
    assert plainly(Frame("catalog"), publish, ["dataset:a/b", *words]) is None


def test_a_plain_command_loads_no_argparse(tmp_path: Any) -> None:
    script = "import sys; from falaj.cli import main; main(sys.argv[1:]); assert 'argparse' not in sys.modules"
    command = [sys.executable, "-c", script, "catalog", "names", "--at", str(tmp_path / "home"), "--kind=model"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
