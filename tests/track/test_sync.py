"""Runs recorded elsewhere come in once, grow, and keep their ids: ours, and those of the real MLflow."""

import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Invalid
from falaj.track.offline import Recorder, read_facts
from tests.servers.peers import MLFLOW, peer
from tests.servers.process import Missing
from tests.town import refusal


def record(folder: Path) -> Recorder:
    run = Recorder(folder, experiment="experiment:fraud/offline", title="on a plane", params={"lr": 0.1})
    for step in range(50):
        run.log({"loss": 1 / (step + 1), "odd": math.nan if step % 2 else -math.inf}, step=step, tags={"at": step})
    return run


def test_a_recorded_run_comes_in_once_and_grows(amal: Any, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    run = record(folder)
    (tmp_path / "model.bin").write_bytes(b"weights")
    run.attach(tmp_path / "model.bin", "model/model.bin")
    (first,) = amal.track.sync(str(folder))
    assert (first.state, first.points, first.params, first.files) == ("new", 100, 1, 1)
    assert first.run.name == run.id
    (second,) = amal.track.sync(str(tmp_path / "runs"))
    assert (second.state, second.points, second.params, second.tags, second.files) == ("same", 0, 0, 0, 0)
    run.log({"loss": 0.001}, step=50)
    run.end()
    (third,) = amal.track.sync(str(folder))
    assert (third.state, third.points) == ("grown", 1)
    (fourth,) = amal.track.sync(str(folder))
    assert (fourth.state, fourth.points) == ("same", 0)
    shown = amal.track.show(first.run)
    assert (shown.status, shown.title, shown.params) == ("finished", "on a plane", {"lr": "0.1"})
    assert shown.tags == {"at": "49"}
    assert [point.step for point in amal.track.history(first.run, "loss").points] == list(range(51))
    assert amal.track.history(first.run, "odd").points[0].number == -math.inf
    assert amal.track.fetch(first.run, "model/model.bin").read() == b"weights"


def test_a_run_is_gone_on_with_and_a_torn_line_harms_nothing(amal: Any, tmp_path: Path) -> None:
    run = record(tmp_path / "r")
    with (tmp_path / "r" / "run.jsonl").open("ab") as file:
        file.write(b'{"what": "log", "at": 1, "met')
    again = Recorder(tmp_path / "r")
    assert again.id == run.id
    again.log({"loss": 5.0}, step=99)
    again.end("failed")
    with pytest.raises(ValueError, match="ended"):
        again.log({"loss": 6.0})
    (synced,) = amal.track.sync(str(tmp_path / "r"))
    assert synced.points == 101
    assert amal.track.show(synced.run).status == "failed"


def test_a_killed_recorder_loses_nothing_it_was_told(tmp_path: Path) -> None:
    program = """
import sys
from falaj.track.offline import Recorder
run = Recorder(sys.argv[1])
for step in range(10**9):
    run.log({"loss": 1.0}, step=step)
    print(step, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "r")], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    last = next(int(line) for line in process.stdout if int(line) >= 500)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    last = int(rest[-1]) if rest and rest[-1].isdigit() else last
    steps = [fact["step"] for fact in read_facts(tmp_path / "r" / "run.jsonl") if fact["what"] == "log"]
    assert steps[: last + 1] == list(range(last + 1))


def test_an_error_in_the_block_is_the_end_of_the_run(tmp_path: Path) -> None:
    def broken() -> None:
        with Recorder(tmp_path / "r") as run:
            run.log({"a": 1.0})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert list(read_facts(tmp_path / "r" / "run.jsonl"))[-1]["status"] == "failed"
    with pytest.raises(ValueError, match="no path"):
        Recorder(tmp_path / "s").attach(__file__, "../out")


def test_the_recorder_needs_nothing_but_python(tmp_path: Path) -> None:
    program = """
import sys
from falaj.track.offline import Recorder
Recorder(sys.argv[1]).end()
assert not {"msgspec", "httpx", "cryptography", "rich", "sqlite3"} & set(sys.modules), sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "r")], check=True)


def test_what_holds_no_runs_is_said(amal: Any, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y.db").write_bytes(b"no database" * 100)
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "run.jsonl").write_text('[1]\n{"at": "x"}\n{"at": 1}\n')
    for source in ("x", "y.db", "nowhere"):
        assert isinstance(refusal(lambda source=source: amal.track.sync(str(tmp_path / source))), Invalid)
    assert amal.track.sync(str(tmp_path / "z")) == ()


MAKE = """
import math, sys, mlflow
from mlflow import MlflowClient
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("Fraude: été")
with mlflow.start_run(run_name="first") as run:
    mlflow.log_params({"lr": 0.1, "nested/key": "x"})
    for step in range(30):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        mlflow.log_metric("val/acc", step / 30, step=step)
    mlflow.log_metric("odd", math.nan)
    mlflow.log_metric("top", math.inf)
    mlflow.set_tag("note", "two\\nlines")
    mlflow.log_text("hello", "notes/hello.txt")
gone = MlflowClient().create_run(run.info.experiment_id)
MlflowClient().delete_run(gone.info.run_id)
print(run.info.run_id)
"""
MORE = """
import sys
from mlflow import MlflowClient
MlflowClient(sys.argv[1]).log_metric(sys.argv[2], "loss", 0.0, step=30)
"""


def mlflow(program: str, folder: Path, *arguments: str) -> str:
    try:
        python = peer("mlflow", *MLFLOW) / "python"
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", program, *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if "maintenance" in done.stderr and done.returncode:
        pytest.skip(f"this release of MLflow writes no file store: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "database"])
def test_what_the_real_mlflow_wrote_comes_in(amal: Any, tmp_path: Path, kind: str) -> None:
    source = tmp_path / ("mlruns" if kind == "files" else "mlflow.db")
    uri = str(source) if kind == "files" else f"sqlite:///{source}"
    run_id = mlflow(MAKE, tmp_path, uri)
    (synced,) = amal.track.sync(str(source), project="fraud")
    assert synced.run.name == run_id
    assert (synced.state, synced.points, synced.files) == ("new", 62, 1)
    run = amal.track.show(synced.run)
    assert (run.title, run.status) == ("first", "finished")
    assert run.params == {"lr": "0.1", "nested/key": "x"}
    assert run.tags["note"] == "two\nlines"
    assert run.metrics["top"].number == math.inf
    assert math.isnan(run.metrics["odd"].number)
    assert amal.track.experiment(run.experiment).title == "Fraude: été"
    assert [point.step for point in amal.track.history(synced.run, "val/acc").points] == list(range(30))
    assert amal.track.fetch(synced.run, "notes/hello.txt").read() == b"hello"
    (again,) = amal.track.sync(str(source), project="fraud")
    assert (again.state, again.points, again.files) == ("same", 0, 0)
    mlflow(MORE, tmp_path, uri, run_id)
    (grown,) = amal.track.sync(str(source), project="fraud")
    assert (grown.state, grown.points) == ("grown", 1)


def test_a_database_is_only_read(amal: Any, tmp_path: Path) -> None:
    """The tables as MLflow lays them out, in a folder that nobody may write to."""
    file = tmp_path / "db" / "mlflow.db"
    file.parent.mkdir()
    with sqlite3.connect(file) as db:
        db.executescript(
            """CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);
            CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INTEGER, end_time INTEGER,
                artifact_uri TEXT, lifecycle_stage TEXT, experiment_id INTEGER);
            CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, step INTEGER, run_uuid TEXT, is_nan INTEGER);
            CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
            CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
            INSERT INTO experiments VALUES (1, 'Default', 'active');"""
        )
        id_ = "ab" * 16
        db.execute("INSERT INTO runs VALUES (?, 'n', 'FINISHED', 1000, 2000, 's3://elsewhere', 'active', 1)", (id_,))
        db.execute("INSERT INTO metrics VALUES ('a', 0, 1500, 3, ?, 1)", (id_,))
        db.execute("INSERT INTO metrics VALUES ('a', 1.7976931348623157e308, 1500, 4, ?, 0)", (id_,))
    db.close()
    before = file.read_bytes()
    (synced,) = amal.track.sync(str(tmp_path / "db"))
    assert amal.track.show(synced.run).metrics["a"].number == math.inf
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["mlflow.db"]
    shutil.rmtree(file.parent)


@pytest.mark.parametrize(
    ("title", "place"),
    [("churn", "main/churn"), ("fraud/churn", "fraud/churn"), ("Default", "default/default"), ("a b", "main/a-b--")],
)
def test_a_run_lands_where_mlflows_clients_would_have_put_it(amal: Any, tmp_path: Path, title: str, place: str) -> None:
    with Recorder(tmp_path / "r", experiment=title) as run:
        run.log({"a": 1.0})
    (synced,) = amal.track.sync(str(tmp_path / "r"))
    found = amal.track.experiment(amal.track.show(synced.run).experiment)
    assert str(found.ref).startswith(f"experiment:{place}"), found
    assert (found.title, found.ref.project) == (title, synced.run.project)


def test_hostile_lines_are_left_out(amal: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    lines: list[Any] = [
        {"what": "start", "at": 1, "run": "../../etc/passwd", "experiment": "experiment:fraud/x", "title": ""},
    ]
    (folder / "run.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert amal.track.sync(str(folder)) == ()
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "link").symlink_to("/etc/passwd")
    run = Recorder(tmp_path / "s")
    run.end()
    (tmp_path / "s" / "artifacts").mkdir()
    (tmp_path / "s" / "artifacts" / "link").symlink_to("/etc/passwd")
    (synced,) = amal.track.sync(str(tmp_path / "s"))
    assert synced.files == 0
