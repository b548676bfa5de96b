"""An array: one program, one job for each index, reached together by a pattern of their names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Conflict, Invalid
from falaj.jobs.array import MOST_JOBS, parse_indices
from tests.jobs.lab import Lab

SCRIPT = "import os; print('index', os.environ['FALAJ_PARAM_INDEX'], os.environ['KIND'])"
SMALL = {"cpus": 0.1, "memory": "100MiB"}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.here:
        yield made


def test_each_job_of_an_array_knows_its_index(lab: Lab) -> None:
    script = lab.script(SCRIPT)
    jobs = lab.here.jobs.array("0-4:2", script, name="score", env={"KIND": "small"}, wait=True, **SMALL)
    assert [(job.ref.name, job.state) for job in jobs] == [(f"score-{index}", "succeeded") for index in (0, 2, 4)]
    assert [lab.lines(job) for job in jobs] == [(f"index {index} small",) for index in (0, 2, 4)]
    assert len({job.code for job in jobs}) == 1, "the program is published once"


def test_a_pattern_of_names_cancels_an_array_and_nothing_else(lab: Lab) -> None:
    jobs = lab.here.jobs.array("1,2", "sleep 600", name="long", **SMALL)
    other = lab.here.jobs.submit("sleep 600", name="longer", **SMALL)
    shown = lab.here.jobs.bulk("cancel", name="long-*")
    assert {row.outcome for row in shown.jobs} == {"would cancel"}
    assert lab.here.jobs.bulk("cancel", name="long-*", yes=True).matched == 2
    assert {lab.show(job).state for job in jobs} == {"cancelled"}
    assert lab.show(other).state == "waiting"
    with pytest.raises(Conflict):
        lab.here.jobs.array("2-3", "sleep 600", name="long", **SMALL)


def test_a_dry_run_of_an_array_submits_nothing(lab: Lab) -> None:
    (job,) = lab.here.jobs.array("0-9", "sleep 600", name="dry", dry_run=True, **SMALL)
    assert job.ref.name == "dry-0"
    assert lab.here.jobs.list().jobs == ()


@pytest.mark.parametrize("text", ["", "3-1", "a", "1-", "0-9:0", "1,1", "0-5,5", f"0-{MOST_JOBS}", "-1", "1;2"])
def test_what_is_no_list_of_indices_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="indices"):
        parse_indices(text)


def test_indices_of_ranges() -> None:
    assert parse_indices("0-6:3, 9,11-12") == (0, 3, 6, 9, 11, 12)
