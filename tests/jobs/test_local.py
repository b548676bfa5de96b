"""Jobs on a laptop, end to end: real scripts in real processes, with no server running."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Conflict, Denied, Invalid, UserCodeFailed
from tests.jobs.lab import PYTHON, Lab, until
from tests.town import refusal

TRAIN = """
import os, pathlib
from falaj import worker
here = worker.attempt()
rows = (pathlib.Path(here.inputs["data"]) / "rows.csv").read_text()
for step in range(3):
    here.progress(step + 1, 3)
    here.metric("loss", 1 / (step + 1), step)
print("rows:", len(rows.split()), flush=True)
(pathlib.Path(here.outputs["model"]) / "weights.txt").write_text(rows)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.here, made.here.working():
        yield made


@pytest.mark.parametrize("git", [False, True])
def test_the_root_key_of_a_platform_beside_a_script_never_becomes_code(tmp_path: Path, git: bool) -> None:
    lab = Lab(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    (tmp_path / "server.key").write_text("a key of somebody else")
    if git:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with lab.here as here:
        wrong = refusal(lambda: here.jobs.submit(str(script)))
        assert isinstance(wrong, Invalid)
        assert "house/keys/falaj.1.key is a root key" in str(wrong)
        if git:
            (tmp_path / ".gitignore").write_text("house\n")
            assert here.jobs.submit(str(script)).state == "waiting", "what git ignores is not taken along"


def test_a_job_reads_what_is_pinned_and_publishes_what_it_makes(lab: Lab) -> None:
    data = lab.home / "data"
    data.mkdir()
    (data / "rows.csv").write_text("1\n2\n")
    lab.here.catalog.publish("dataset:fraud/tx", str(data), label="AE-PDPL,sensitive")
    job = lab.submit(
        TRAIN, project="fraud", inputs={"data": "dataset:fraud/tx"}, outputs={"model": "model:fraud/scorer"}
    )
    (data / "rows.csv").write_text("1\n2\n3\n")
    lab.here.catalog.publish("dataset:fraud/tx", str(data), label="AE-PDPL,sensitive")
    job = lab.done(job)
    assert (job.state, job.progress, job.note) == ("succeeded", "3/3", "")
    assert lab.lines(job) == ("rows: 2",)
    assert str(job.outputs["model"]) == "model:fraud/scorer@v1"
    model = lab.here.catalog.show(job.outputs["model"])
    assert str(model.inputs["data"]) == "dataset:fraud/tx@v1"
    assert (model.inputs["code"], model.inputs["run"].bare) == (job.code, job.run)
    assert model.label.classification == 2
    run = lab.here.track.show(job.run)
    assert (run.status, run.metrics["loss"].value) == ("finished", pytest.approx(1 / 3))


def test_what_fails_is_tried_again_as_often_as_it_was_said(lab: Lab) -> None:
    text = "import os, sys; sys.exit(3 if os.environ['FALAJ_ATTEMPT'].endswith(('-1', '-2')) else 0)"
    assert lab.done(lab.submit(text, "twice", retries=2)).state == "succeeded"
    failed = lab.done(lab.submit(text, "once", retries=1))
    assert (failed.state, failed.note, len(failed.attempts)) == ("failed", failed.note, 2)
    assert failed.note.startswith("exit code 3")
    other = lab.done(lab.submit(text, "other", retries=5, retry_on=(4,)))
    assert (other.state, len(other.attempts)) == ("failed", 1)
    assert lab.here.track.show(other.run).status == "failed"


def test_trouble_that_is_not_its_own_is_not_counted(lab: Lab) -> None:
    text = "import os, sys; sys.exit({'1': 75, '2': 85}.get(os.environ['FALAJ_ATTEMPT'][-1], 0))"
    job = lab.done(lab.submit(text))
    assert (job.state, [one.code for one in job.attempts]) == ("succeeded", [75, 85, 0])


def test_a_killed_process_is_lost_and_queued_again(lab: Lab) -> None:
    text = "import os, time\nprint(os.getpid(), flush=True)\nif os.environ['FALAJ_ATTEMPT'][-1] == '1': time.sleep(600)"
    job = lab.submit(text)
    pid = int(until(lambda: lab.lines(job), len)[0])
    launcher = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGKILL)
    job = lab.done(job)
    assert (job.state, len(job.attempts)) == ("succeeded", 2)
    assert job.attempts[0].outcome.startswith("lost")


def test_a_job_is_cancelled_while_it_runs_and_while_it_waits(lab: Lab) -> None:
    running = lab.submit("import time; time.sleep(600)", "runs")
    lab.until(running, lambda job: job.state == "running")
    waiting = lab.submit("print(1)", "waits", after=(running.ref,))
    assert lab.show(waiting).state == "held"
    assert lab.here.jobs.cancel(waiting.ref).state == "cancelled"
    assert lab.here.jobs.cancel(running.ref).state == "stopping"
    assert lab.done(running).state == "cancelled"
    assert isinstance(refusal(lambda: lab.here.jobs.cancel(running.ref)), Conflict)
    again = lab.here.jobs.retry(waiting.ref)
    assert again.state == "held"
    ended = lab.done(waiting)
    assert (ended.state, "did not succeed" in ended.note) == ("cancelled", True)


def test_a_job_ends_though_somebody_deleted_its_run(lab: Lab, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)"
    running = lab.submit(waits, "runs")
    lab.until(running, lambda job: job.state == "running")
    waiting = lab.submit("print(1)", "waits", after=(running.ref,))
    for job in (running, waiting):
        lab.here.track.delete(job.run)
    assert lab.here.jobs.cancel(waiting.ref).state == "cancelled"
    go.touch()
    assert lab.done(running).state == "succeeded"
    assert lab.here.track.show(running.run).status == "finished"


def test_a_job_that_takes_too_long_is_ended(lab: Lab) -> None:
    job = lab.done(lab.submit("import time; time.sleep(600)", limit="1s", retries=3))
    assert (job.state, len(job.attempts)) == ("failed", 1)
    assert "time limit" in job.note


def test_one_job_waits_for_another(lab: Lab) -> None:
    first = lab.submit("print(1)", "first")
    second = lab.submit("print(2)", "second", after=(first.ref,))
    done = lab.done(second)
    assert done.state == "succeeded"
    assert done.attempts[0].started >= lab.show(first).ended_at


def test_a_spec_file_says_the_same_as_flags(lab: Lab) -> None:
    lab.script("import os; print(os.environ['COLOUR'], os.environ['FALAJ_WORLD'])", "spec")
    file = lab.home / "code-spec" / "job.yaml"
    file.write_text(
        "name: from-file\nproject: fraud\ncommand: python spec.py\nenv: {COLOUR: blue}\n"
        "roles:\n  - {name: chief, cpus: 0.1, memory: 32MiB}\n  - {name: worker, count: 2, cpus: 0.1, memory: 32MiB}\n"
    )
    job = lab.done(lab.here.jobs.submit(str(file), band="low"))
    assert (str(job.ref), job.band, job.state) == ("job:fraud/from-file", "low", "succeeded")
    assert [lab.lines(job, slot=slot) for slot in range(3)] == [("blue 3",)] * 3


def test_waiting_for_a_job_that_fails_is_an_error(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(lambda: lab.submit("print('so it began'); raise SystemExit(2)", wait=True))
    assert isinstance(error, UserCodeFailed)
    assert capsys.readouterr().out == "so it began\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"workers": 0}, "slots"),
        ({"gpus": 1.5}, "GPUs"),
        ({"gpus": 0.5, "isolation": "hard"}, "hardware"),
        ({"band": "urgent"}, "band"),
        ({"band": "critical"}, "expected band normal or lower, got critical"),
        ({"queue": "root/bank"}, "queue"),
        ({"cluster": "moon"}, "cluster"),
        ({"env": {"PASSWORD": "hunter2hunter2"}}, "secret"),
        ({"env": {"FALAJ_JOB": "x"}}, "variable"),
        ({"min_workers": 3, "workers": 2}, "workers"),
        ({"topology": "rack:maybe"}, "topology"),
        ({"memory": "lots"}, "size"),
        ({"limit": "soon"}, "span"),
        ({"outputs": {"a b": "model:fraud/m"}}, "variable"),
        ({"inputs": {"data": "job:fraud/m"}}, "job:fraud/m"),
    ],
)
def test_bad_input_gets_one_clear_error(lab: Lab, more: dict[str, object], said: str) -> None:
    error = refusal(lambda: lab.submit("print(1)", **more))
    assert said in str(error)
    assert lab.here.jobs.list().jobs == ()


def test_only_the_people_of_the_house_run_on_its_own_machine(tmp_path: Path) -> None:
    from tests.town import Town

    town = Town(tmp_path / "town")
    try:
        lab = Lab(tmp_path, town.as_("amal"))
        assert isinstance(refusal(lambda: lab.submit("print(1)", project="fraud")), Denied)
        town.as_("admin").clusters.change("local", {"tenants": "bank"})
        with lab.here.working():
            assert lab.done(lab.submit("print(1)", project="fraud")).state == "succeeded"
    finally:
        town.close()


def test_a_dry_run_checks_and_writes_nothing(lab: Lab) -> None:
    assert lab.submit("print(1)", dry_run=True).state == "waiting"
    assert lab.here.jobs.list().jobs == ()
    assert isinstance(refusal(lambda: lab.here.jobs.submit("nothing.py")), Invalid)


def test_what_git_does_not_count_is_not_packed(lab: Lab) -> None:
    import subprocess

    script = Path(lab.script("import os; print(sorted(os.listdir()))"))
    (script.parent / "weights.bin").write_bytes(b"0" * 1000)
    (script.parent / ".gitignore").write_text("*.bin\n")
    subprocess.run(["git", "init", "-q", str(script.parent)], check=True)
    job = lab.done(lab.here.jobs.submit(str(script), cpus=0.1, memory="100MiB"))
    assert "weights.bin" not in lab.lines(job)[0]
    assert "train.py" in lab.lines(job)[0]


def test_another_pool_of_processes_has_a_folder_of_its_own(lab: Lab, tmp_path: Path) -> None:
    added = lab.here.clusters.add("pool", "process:?nodes=2&cpus=1000&memory=1024")
    assert added.folder == str(tmp_path / "house" / "attempts-pool")
    text = (
        "import pathlib; from falaj import worker; pathlib.Path(worker.attempt().outputs['model'], 'm').write_text('m')"
    )
    done = lab.done(lab.submit(text, cluster="pool", outputs={"model": "model:default/m"}))
    assert (done.state, done.attempts[0].cluster, str(done.outputs["model"])) == (
        "succeeded",
        "pool",
        "model:default/m@v1",
    )
    other = lab.here.clusters.add("other", f"process:{tmp_path}/elsewhere?nodes=1&cpus=1000&memory=1024")
    assert other.folder == f"{tmp_path}/elsewhere"


def test_a_python_without_falaj_finds_what_a_worker_needs(lab: Lab, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(bare)], check=True)
    text = "from falaj import worker; worker.attempt().metric('loss', 0.5, 1)"
    done = lab.done(lab.here.jobs.submit(f"{bare}/bin/python {lab.script(text)}", cpus=0.1, memory="100MiB"))
    assert done.state == "succeeded", lab.lines(done)
    assert lab.here.track.show(done.run).metrics["loss"].value == 0.5
