"""What a list shows to people: a few columns that exist, while a program gets everything."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from falaj.catalog.lifecycle_records import AliasBinding, PromotionResult
from falaj.catalog.records import CatalogVersion
from falaj.cli.cli_context import CliContext, print_error
from falaj.cli.operation_commands import collect_arguments, parse_by_argparse
from falaj.cli.output import format_cell, print_result
from falaj.content.records import TableColumn, TableDescription
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.govern.approvals import evaluate_approval
from falaj.govern.records import ApprovalQuestion, ApprovalState, LegalZone
from falaj.server import load_service_class
from falaj.services import SERVICES


def test_every_column_that_a_record_names_is_there() -> None:
    seen = 0
    for desk in SERVICES:
        for verb in list_operations(load_service_class(desk)).values():
            for record in (verb.result, *getattr(verb.result, "__args__", ())):
                columns = getattr(record, "COLUMNS", ())
                seen += bool(columns)
                # A field, what is made of some, or one of a record in it.
                assert all(hasattr(record, name.partition(".")[0]) for name in columns), record
    assert seen >= 5


def test_a_list_is_narrow_and_json_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    zones = (LegalZone("home", "AE", "AE", ("AE-PDPL",), 3, store="dir:somewhere"),)
    print_result(zones)
    assert capsys.readouterr().out.splitlines()[0].split("\t") == [name.replace("_", " ") for name in LegalZone.COLUMNS]
    print_result(zones, as_json=True)
    assert "dir:somewhere" in capsys.readouterr().out


def test_approvals_are_a_table_of_what_is_asked_and_how_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ApprovalQuestion("a.b", "sha256:1", 2, 0, ("approver",), "amal", (), "passed", 1.8e9, 1.9e9, "model:a/b@v1")
    state = ApprovalState(Ref.parse("approval:approvals/x"), asked, evaluate_approval(asked, 1.8e9))
    print_result((state,))
    head, line = (one.split("\t") for one in capsys.readouterr().out.splitlines())
    assert head == ["ref", "about", "reason", "asker", "state", "why", "until"]
    assert line[1:6] == ["model:a/b@v1", "passed", "amal", "waiting", "it waits for 2 more people"]
    assert format_cell("asked", asked.asked) == "2027-01-15 08:00:00Z"


def test_moments_of_reviews_zones_and_grants_are_dates() -> None:
    names = ("last_used", "not_before", "valid_from", "valid_to")
    assert {format_cell(name, 1_794_981_852.08316) for name in names} == {"2026-11-18 06:04:12Z"}


def test_a_moment_that_nobody_knows_is_shown_as_nothing() -> None:
    assert [format_cell(name, 0.0) for name in ("starts_at", "ended_at", "ended", "price")] == ["", "", "", "0.0"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """What is printed is printed for eyes."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "120")
    return capsys


VERSION = CatalogVersion(
    Ref.parse("dataset:fraud/tx@v1"), "b3:0", 1, 10, "experiment", Label(), ("home",), "amal", 1.8e9,
    table=TableDescription(3, tuple(TableColumn(f"column{n}", "BIGINT", low=str(n)) for n in range(9)), "csv"),
    tags={f"tag{n}": "x" * 20 for n in range(9)},
)  # fmt: skip


def test_a_record_is_readable_in_a_terminal(terminal: pytest.CaptureFixture[str]) -> None:
    print_result(VERSION)
    lines = terminal.readouterr().out.splitlines()
    begins = [line.split() for line in lines]
    for n in range(9):
        assert [f"column{n}", "BIGINT"] in [words[:2] for words in begins], "a column has a line of its own"
        assert sum(f"tag{n}=" in line for line in lines) == 1
    assert ["table"] in begins
    assert "message" not in [words[0] for words in begins if words], "what says nothing is not shown"
    assert max(map(len, lines)) <= 120


def test_a_pipe_has_a_line_for_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(VERSION)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [each.name.replace("_", " ") for each in fields(CatalogVersion)]


def test_long_values_are_cut_in_a_terminal_only(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = replace(VERSION, message="m" * 6000)
    print_result((long,))
    said = terminal.readouterr().out
    assert "…" in said
    assert 150 < said.count("m") < 300
    print_result((long,), as_json=True)
    assert "m" * 6000 in terminal.readouterr().out
    monkeypatch.undo()
    print_result((long,))
    assert "m" * 6000 in terminal.readouterr().out


def test_what_has_no_end_yet_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_result((AliasBinding("production", VERSION.ref, 1.8e9),))
    [_, line] = capsys.readouterr().out.splitlines()
    assert line.split("\t")[2:4] == ["2027-01-15 08:00:00Z", ""]
    print_result(PromotionResult(VERSION.ref, "production", "done"))
    assert "until\t\n" in capsys.readouterr().out


def test_a_record_with_many_parts_leaves_its_head_in_sight(terminal: pytest.CaptureFixture[str]) -> None:
    packages = {f"package-{number}": "1.0" for number in range(150)}
    print_result({"ref": "model:a/b@v1", "environment": packages})
    lines = terminal.readouterr().out.splitlines()
    assert len(lines) < 40
    assert "… and 120 more: --json shows all" in lines[-1]


def test_what_others_wrote_commands_no_terminal(terminal: pytest.CaptureFixture[str]) -> None:
    """Brackets were styles to the library that draws tables: some words vanished, and [/this] ended in a traceback."""
    said = "fix [/red], [int8] and :fire: \x1b[2J\u202eآمن"
    for value in ({"message": said}, ({"message": said},), (said,), ((said, said),)):
        print_result(value)
        out = terminal.readouterr().out
        assert "fix [/red], [int8] and :fire: \\x1b[2J\\u202eآمن" in out
        assert not {"\x1b[2J", "\u202e"} & {out[at : at + length] for at in range(len(out)) for length in (1, 4)}


def test_no_error_commands_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(Invalid("\x1b[31m holds no runs", "a\nb\x07"), as_json=False)
    assert capsys.readouterr().err == "error: \\x1b[31m holds no runs\nhint: a\nb\\x07\n"


def test_records_are_given_as_json_one_by_one_or_in_a_list(tmp_path: Path) -> None:
    points = [{"key": "loss", "value": 0.4, "step": 1}, {"key": "loss", "value": 0.2, "step": 2}]
    (tmp_path / "points.json").write_text(json.dumps(points))
    log, name = list_operations(load_service_class("track"))["log"], "run:a/b"
    for words in ([json.dumps(one) for one in points], [json.dumps(points)], [f"@{tmp_path}/points.json"]):
        typed = [word for one in words for word in ("--metrics", one)]
        assert collect_arguments("track", log, parse_by_argparse(CliContext("track"), "track", log, [name, *typed])[1])[
            "metrics"
        ] == tuple(points)
