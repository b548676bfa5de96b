"""Help, errors and exit codes; nothing heavy is loaded to say them."""

import json
import re
import subprocess
import sys
from importlib import import_module

import pytest

from falaj.cli import COMMANDS, main, split_command
from falaj.cli.operation_commands import list_operations_and_commands, to_typed_name
from falaj.services import SERVICES
from tests.cli.conftest import Run


def test_help_lists_every_desk_and_command(falaj: Run) -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        got = falaj(*arguments)
        assert got.returncode == 0
        assert [name for name in (*SERVICES, *COMMANDS) if f"  {name} " not in got.stdout] == []


def loaded_by(*arguments: str) -> set[str]:
    code = f"import sys; from falaj.cli import main; main({list(arguments)}); print(list(sys.modules), file=sys.stderr)"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(re.findall(r"'([\w.]+)'", got.stderr))


def test_top_help_loads_no_third_party_and_no_room() -> None:
    loaded = loaded_by("--help")
    assert {name for name in loaded if name.startswith("falaj")} == {"falaj", "falaj.cli", "falaj.services"}
    assert not loaded & {"argparse", "json", "asyncio", "dataclasses", "rich", "httpx", "msgspec"}


def test_the_version_is_said_without_knowing_any_desk() -> None:
    assert not loaded_by("--version") & {"falaj.services", "typing", "re", "enum"}


def test_a_desks_help_imports_no_other_desk_and_no_server() -> None:
    loaded = loaded_by("zones", "--help")
    assert not loaded & {"uvicorn", "starlette", "httpx", "rich", "falaj.server", "falaj.audit.service", "asyncio"}


@pytest.mark.parametrize("desk", list(SERVICES))
def test_every_verb_has_help_with_an_example(desk: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([desk, "--help"]) == 0
    listed = capsys.readouterr().out
    for verb in list_operations_and_commands(desk):
        assert f"  {to_typed_name(verb)}" in listed
        with pytest.raises(SystemExit) as ended:
            main([desk, to_typed_name(verb), "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: falaj {desk} {to_typed_name(verb)}")
        assert verb.summary[:40] in shown.replace("\n", " ")


def test_every_example_of_every_verb_can_be_typed() -> None:
    """The examples in docstrings are parsed by the parser that users meet."""
    import shlex

    from falaj.cli.argument_parsing import parse_arguments
    from falaj.cli.cli_context import CliContext
    from falaj.cli.operation_commands import collect_arguments, create_operation_parser, list_example_lines
    from falaj.core.argument_binding import union_members
    from falaj.core.errors import FalajError, Invalid
    from falaj.core.ref import Ref

    wrong = []
    for name in SERVICES:
        for verb in list_operations_and_commands(name):
            text = "\n".join(list_example_lines(verb)).replace("\\\n", " ")
            for line in re.split(r"\n(?=falaj )", text):
                words = shlex.split(re.split(r" (?:\||>|&&) ", line)[0], comments=True)
                if words[:3] != ["falaj", name, to_typed_name(verb)]:
                    continue
                try:
                    _, found = parse_arguments(
                        CliContext(name), create_operation_parser(name, verb), words[3:], is_plain=False
                    )
                    taken = collect_arguments(name, verb, found)
                    for param in verb.params:
                        if Ref in union_members(param.type) and param.name in taken:
                            Ref.parse(taken[param.name].rstrip("…"))  # an id may be cut short
                except Invalid as error:
                    if "cannot be read" not in error.message:
                        wrong.append(f"{line}: {error}")
                except FalajError as error:
                    wrong.append(f"{line}: {error}")
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["zone", "list"], 2, "did you mean: falaj zones"),
        (["zones", "lst"], 2, "it has: "),
        (["zones", "show"], 2, "ZONE is missing"),
        (["zones", "show", "a", "b"], 2, "too many"),
        (["zones", "show", "--colour"], 2, "--colour"),
        (["zones", "list", "--at"], 2, "--at"),
        (["--colour"], 2, "--colour"),
        (["store", "show", "nonsense"], 2, "is not a reference"),
        (["store", "show", "blob:a/none"], 5, "there is no"),
        (["store", "put", "blob:a/b", "/does/not/exist"], 2, "cannot be read"),
        (["store", "list", "--limit", "many"], 2, "number"),
        (["catalog", "attest", "model:a/b", "bias"], 2, "--passed is missing"),
        (["catalog", "attest", "model:a/b", "bias"], 2, "NAME KIND --passed|--no-passed [flags]"),
        (["catalog", "attest", "model:a/b", "bias", "--passed", "--metrics", "gap=nan"], 2, "it must be a number"),
        (["up", "--listen", "0.0.0.0:0"], 2, "no TLS"),
        (["up", "--at", "https://falaj.example"], 2, "URL"),
        (["status", "--at", "http://127.0.0.1:9"], 8, "nothing answers"),
        (["login", "./folder"], 2, "URL"),
        (["logout"], 3, "no such login"),
        (["--as", "nobody", "zones", "list"], 2, "no login named"),
        (["tls"], 2, "show|issue"),
        (["tls", "issue", "../x"], 2, "name"),
        (["completion", "tcsh"], 2, "tcsh"),
        (["catalog", "publish", "dataset:a/b", "x" * 5000], 2, "File name too long"),
        (["catalog", "import-dvc", "dataset:a/b", "x" * 5000], 2, "File name too long"),
        (["--at", "/proc/nowhere", "status"], 2, "'/proc/nowhere': No such file"),
    ],
)
def test_errors_say_what_is_true_what_to_do_and_end_with_their_code(
    falaj: Run, arguments: list[str], code: int, says: str
) -> None:
    got = falaj(*arguments)
    assert got.returncode == code, got.stderr
    assert got.stderr.startswith("error: ")
    assert "hint: " in got.stderr
    assert says in got.stderr
    assert "Traceback" not in got.stderr
    assert "\033" not in got.stderr


def test_errors_can_be_json(falaj: Run) -> None:
    for arguments in (["--json", "store", "show", "blob:a/none"], ["store", "show", "blob:a/none", "--json"]):
        got = falaj(*arguments)
        assert (got.returncode, json.loads(got.stderr)["code"]) == (5, "not-found")


def test_version_and_module(falaj: Run) -> None:
    assert falaj("--version").stdout == f"falaj {import_module('falaj').__version__}\n"


def test_flags_before_the_command_are_told_from_it() -> None:
    assert split_command(["--at", "zones", "--json", "people", "list", "--at", "x"]) == (
        ["--at", "zones", "--json"],
        "people",
        ["list", "--at", "x"],
    )
    assert split_command(["--json"]) == (["--json"], "", [])
