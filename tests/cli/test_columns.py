"""What a list shows to people: a few columns that exist, while a program gets everything."""

import pytest

from falaj.cli.tables import cell, put
from falaj.core.verb import verbs_of
from falaj.desks import DESKS
from falaj.govern.records import Zone
from falaj.platform import desk_class


def test_every_column_that_a_record_names_is_there() -> None:
    seen = 0
    for desk in DESKS:
        for verb in verbs_of(desk_class(desk)).values():
            for record in (verb.result, *getattr(verb.result, "__args__", ())):
                columns = getattr(record, "COLUMNS", ())
                seen += bool(columns)
                assert all(hasattr(record, name) for name in columns), record  # a field, or what is made of some
    assert seen >= 5


def test_a_list_is_narrow_and_json_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    zones = (Zone("home", "AE", "AE", ("AE-PDPL",), 3, store="dir:somewhere"),)
    put(zones)
    assert capsys.readouterr().out.splitlines()[0].split("\t") == [name.replace("_", " ") for name in Zone.COLUMNS]
    put(zones, as_json=True)
    assert "dir:somewhere" in capsys.readouterr().out


def test_a_moment_that_nobody_knows_is_shown_as_nothing() -> None:
    assert [cell(name, 0.0) for name in ("starts_at", "ended_at", "ended", "price")] == ["", "", "", "0.0"]
