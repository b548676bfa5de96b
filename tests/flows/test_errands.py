"""What people do with flows beside the platform, on a laptop: real jobs, and nothing faked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.flows.client_commands import expand_values

FLOW = """
from falaj import flow, step

SMALL = {"cpus": 0.1, "memory": "100MiB"}

@step(outputs={"rows": "dataset:lab/clean"}, **SMALL)
def clean(raw, times=1):
    print("cleaning")
    (step.output("rows") / "rows.csv").write_text((raw / "rows.csv").read_text() * times)
    return {"times": times}

@step(**SMALL)
def count(rows, champion: str):
    return {"n": [len((one / "rows.csv").read_text()) for one in rows], "champion": champion}

@flow("lab/day", params={"data": "dataset:lab/rows"})
def day(data, times=1):
    parts = clean.map([data, data], times)
    flow.job("sh tell.sh", inputs={"rows": parts["rows"]}, params={"times": times}, name="tell", **SMALL)
    count(parts["rows"], "model:lab/none")

@step(**SMALL)
def strange():
    return {1, 2}

@step(outputs={"rows": "dataset:lab/none"}, **SMALL)
def nothing():
    return 1

@flow("lab/bad")
def bad():
    strange()
    nothing()
"""
TELL = 'test -f "$FALAJ_INPUT_ROWS_0/rows.csv" && echo "told $FALAJ_PARAM_TIMES times"'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    home = tmp_path_factory.mktemp("flows")
    for name, text in (("data/rows.csv", "1,2,3\n"), ("code/day.py", FLOW), ("code/tell.sh", TELL)):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    here = falaj.connect(str(home / "house"))
    here.catalog.publish("dataset:lab/rows", str(home / "data"))
    yield here, str(home / "code" / "day.py")
    here.close()


def test_a_file_is_run_and_what_is_known_is_not_run_again(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    here, file = lab
    one = here.flows.run(f"{file}:day", {"times": "2"})
    gave = {step.name: step.outputs for step in one.steps}
    assert gave["count"] == {"n": [12, 12], "champion": "model:lab/none"}
    made = here.catalog.show(gave["clean"]["items"][0]["rows"])
    assert {str(ref.bare) for ref in made.inputs.values()} >= {"dataset:lab/rows", "code:lab/day"}, "its lineage"
    here.flows.logs(one.ref)
    said = capsys.readouterr().out
    assert said.count("cleaning") == 2
    assert "told 2 times" in said
    done = here.flows.backfill("flow:lab/day", {"times": "2..3"}, at_once=2)
    assert [(one.value, one.state) for one in done] == [("2", "succeeded"), ("3", "succeeded")]
    known = here.flows.look(done[0].run)
    assert {step.name: step.cached for step in known.steps} == dict.fromkeys(gave, str(one.ref))
    assert here.flows.backfill("flow:lab/day", {"times": "2..3"}) == done, "called again, it goes on"


def test_alone_nothing_is_kept(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    here, file = lab
    before = len(here.jobs.list().jobs)
    done = here.flows.run(f"{file}:lab/day", local=True)
    assert done.steps[-1].outputs["n"] == [6, 6]
    assert (len(here.jobs.list().jobs), str(done.ref)) == (before, "turn:lab/day-local")
    assert "count: day.py:count" in capsys.readouterr().out


def test_what_a_step_does_wrong_is_said(lab: Any) -> None:
    here, file = lab
    with pytest.raises(UserCodeFailed, match="what strange returned is no JSON: a set"):
        here.flows.run(f"{file}:bad")
    (run,) = here.flows.runs(flow="flow:lab/bad").runs
    notes = {step.name: step.note for step in run.steps}
    assert "write anything else as files" in notes["strange"]
    assert "falaj jobs logs job:lab/bad-1.strange" in notes["strange"]
    assert "it wrote no output rows" in notes["nothing"]


def test_files_that_are_no_flow(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, file = lab
    monkeypatch.syspath_prepend(Path(file).parent)
    for text, said in (("x = 1", "has 0 flows"), ("from day import *", "is a step of another file")):
        (tmp_path / "other.py").write_text(text)
        with pytest.raises(Invalid, match=said):
            here.flows.save(str(tmp_path / "other.py") + (":day" if "day" in text else ""))
    with pytest.raises(Invalid, match="has 2 flows"):
        here.flows.save(file)
    with pytest.raises(Invalid, match="no file"):
        here.flows.save("none.py")
    with pytest.raises(Invalid, match="only a file"):
        here.flows.run("flow:lab/day", local=True)


def test_what_is_gone_through() -> None:
    assert list(expand_values("2026-02-27..2026-03-01")) == ["2026-02-27", "2026-02-28", "2026-03-01"]
    assert list(expand_values("-1..2")) == ["-1", "0", "1", "2"]
    assert list(expand_values("a, b,a")) == ["a", "b"]
    for bad in ("2026-01-01..x", "a..b"):
        with pytest.raises(Invalid, match="is no range"):
            list(expand_values(bad))
