"""Sets by many workers: the same bits as one machine makes, whoever did what and whatever was killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.asof.distributed_sets import TrainingSetTask, WorkerIdentity, assemble_set, build_worker_share, read_blocks
from falaj.asof.records import FeatureField, ViewPlan
from falaj.asof.row_files import RowSchema, SegmentRows, list_partition_segments, write_rows
from falaj.asof.training_sets import JoinedView, build_training_set
from falaj.core.errors import CorruptData, FalajError, Invalid, NotFound, UserCodeFailed
from falaj.jobs.records import JobView
from falaj.worker.launcher_archive import get_launcher_archive
from tests.features.spread_ground import bits, lay_ground, read_set
from tests.jobs.lab import PATIENCE_S, Lab
from tests.town import refusal

Asked = tuple[int | None, int]
ASKED = ("dataset:fraud/labels", "service:fraud/both")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"))
    with made.here, pytest.MonkeyPatch.context() as patch:
        lay_ground(made.here, made.home, patch)
        made.one_node(cpus=4000, memory=8192)
        yield made


@pytest.fixture
def new_jobs(lab: Lab) -> Callable[[], list[JobView]]:
    """The jobs that a test has made."""
    before = {job.ref for job in lab.here.jobs.list().jobs}
    return lambda: [lab.show(job) for job in lab.here.jobs.list().jobs if job.ref not in before]


@pytest.mark.parametrize(("workers", "known_at"), [(2, "label"), (3, "")])
def test_many_workers_make_the_same_bits(
    lab: Lab, new_jobs: Callable[[], list[JobView]], tmp_path: Path, workers: int, known_at: str
) -> None:
    done = lab.here.features.spread(*ASKED, "dataset:fraud/train", workers=workers, moment="moment", known_at=known_at)
    alone = lab.here.features.table(*ASKED, moment="moment", known_at=known_at)
    made = read_set(lab.here, done.published, tmp_path / "out")
    assert made.schema.equals(alone.schema)
    assert bits(made) == bits(alone)
    assert (done.rows, done.columns) == (alone.num_rows, tuple(alone.column_names))
    assert set(done.found["amount"]) == {"PRESENT", "NULL", "NOT_FOUND", "EXPIRED", "FUTURE"}, "a case is not tried"

    # The same record as history leaves: lineage, label, tags.
    one = lab.here.features.history(*ASKED, name="dataset:fraud/alone", moment="moment", known_at=known_at)
    theirs, ours = lab.here.catalog.show(one.published), lab.here.catalog.show(done.published)
    assert (ours.inputs, ours.label) == (theirs.inputs, theirs.label)
    assert (ours.tags, ours.message) == (theirs.tags, theirs.message)
    assert one.found == done.found

    (job,) = new_jobs()
    assert job.width == workers
    assert job.steps > 2, "there is one partition only, and nothing was shared out"
    assert len(job.inputs) == 1 + 2 * 2 + 2, "labels, two chapters with a face apart, two without"
    with pytest.raises(NotFound):
        lab.here.catalog.checkout(job.outputs["pieces"], str(tmp_path / "pieces"))
    assert list((lab.home / "house").rglob("v0000-p*.parquet")) == [], "pieces were left behind"


def test_a_killed_worker_is_tried_again(lab: Lab, new_jobs: Callable[[], list[JobView]], tmp_path: Path) -> None:
    alone = lab.here.features.table(*ASKED, moment="moment")
    killed: list[int] = []
    killer = threading.Thread(target=_kill_rank, args=(1, str(lab.home), killed))
    killer.start()
    done = lab.here.features.spread(*ASKED, "dataset:fraud/train", workers=2, moment="moment")
    killer.join()
    (job,) = new_jobs()
    assert killed
    assert len(job.attempts) == 2
    assert bits(read_set(lab.here, done.published, tmp_path / "out")) == bits(alone)


def test_what_cannot_be_spread_is_refused_before_anything_runs(
    lab: Lab, new_jobs: Callable[[], list[JobView]], tmp_path: Path
) -> None:
    def refused(act: Callable[[], object]) -> FalajError:
        error = refusal(act)
        assert isinstance(error, Invalid)
        assert new_jobs() == []
        return error

    spread, name = lab.here.features.spread, "dataset:fraud/train"
    assert "event_timestamp" in refused(lambda: spread(*ASKED, name)).message
    assert "workers" in refused(lambda: spread(*ASKED, name, workers="many", moment="moment")).message
    (tmp_path / "words.json").write_text(json.dumps({"workers": 2, "gpus": 8}))
    assert "gpus" in refused(lambda: spread(*ASKED, name, workers=str(tmp_path / "words.json"))).message
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("customer_id,moment\nc1,2026-01-01T00:00:00Z\n")
    lab.here.catalog.publish("dataset:fraud/csv", str(tmp_path / "csv"))
    assert "Parquet" in refused(lambda: spread("dataset:fraud/csv", ASKED[1], name, moment="moment")).message
    bare = pq.read_table(lab.home / "labels" / "0.parquet").drop_columns(["price"])
    pq.write_table(bare, tmp_path / "bare.parquet")
    lab.here.catalog.publish("dataset:fraud/bare", str(tmp_path / "bare.parquet"))
    assert "price" in refused(lambda: spread("dataset:fraud/bare", ASKED[1], name, moment="moment")).message
    (tmp_path / "more.py").write_text(MORE)
    lab.here.features.apply(str(tmp_path / "more.py"))
    raw = refused(lambda: spread(ASKED[0], "view:fraud/raw", name, moment="moment"))
    assert raw.hint == "falaj features ingest view:fraud/raw"
    sealed = refused(lambda: spread(ASKED[0], "view:fraud/sealed", name, moment="moment"))
    assert "history" in sealed.hint


MORE = """
from falaj.features import Entity, Feature, Source, view

person = Entity("fraud/person", keys={"customer_id": "string"}, subject="customer_id")
raw = view("fraud/raw", person, Source("dataset:fraud/spend", event="at"), features=[Feature("amount", "float64")])
sealed = view("fraud/sealed", person, Source("dataset:fraud/spend", event="at"), sealed=True,
              features=[Feature("amount", "float64")])
"""


def test_what_a_worker_stumbles_over_is_said(lab: Lab, new_jobs: Callable[[], list[JobView]], tmp_path: Path) -> None:
    """Moments in texts without a zone: nobody knows that before the rows are read."""
    table = pq.read_table(lab.home / "labels" / "0.parquet")
    naive = table.set_column(3, "moment", pa.array(["2026-02-01 10:00:00"] * len(table)))
    pq.write_table(naive, tmp_path / "naive.parquet")
    lab.here.catalog.publish("dataset:fraud/naive", str(tmp_path / "naive.parquet"))
    spread = lab.here.features.spread
    error = refusal(lambda: spread("dataset:fraud/naive", ASKED[1], "dataset:fraud/train", moment="moment"))
    assert isinstance(error, UserCodeFailed)
    assert "zone" in error.message
    (job,) = new_jobs()
    assert str(job.ref) in error.hint
    assert len(job.attempts) == 1, "it was tried again, which could not help"


PLAN = ViewPlan(
    "view:a/v@v1", "", (FeatureField("k", "int64"),), (FeatureField("x", "float64"),), ("x",), ("x",), ttl_us=50,
)  # fmt: skip


def _small(folder: Path, labels: list[Asked], cuts: list[int], block: int) -> TrainingSetTask:
    """Rows in eight partitions and labels in files that end where `cuts` say."""
    rng = np.random.default_rng(1)
    rows = pa.table({"k": rng.integers(0, 40, 500), "event": rng.integers(0, 200, 500), "x": rng.random(500)})
    write_rows([rows], RowSchema(PLAN.keys, {"": PLAN.stored}), folder / "rows", partitions=8)
    keys, at = zip(*labels, strict=True) if labels else ((), ())
    table = pa.table({"k": pa.array(keys, pa.int64()), "at": pa.array(at, pa.int64()), "y": range(len(labels))})
    (folder / "labels").mkdir()
    bounds = sorted({0, len(labels), *(min(cut, len(labels)) for cut in cuts)})
    names = []
    for low, high in zip(bounds, [*bounds[1:], bounds[-1]], strict=True):
        names.append(f"{low:03d}-{high}.parquet")
        pq.write_table(table.slice(low, high - low), folder / "labels" / names[-1])
    return TrainingSetTask("at", None, tuple(names), (PLAN,), (({"": "rows"},),), block_rows=block)


def _done(task: TrainingSetTask, folder: Path, world: int, attempt: str = "a-1") -> None:
    inputs = {"labels": str(folder / "labels"), "rows": str(folder / "rows" / "_")}
    (folder / "out").mkdir(exist_ok=True)
    for rank in reversed(range(world)):
        build_worker_share(
            task, WorkerIdentity(rank, world, attempt), inputs, folder / "pieces", folder / "out", lambda *_: None
        )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    labels=st.lists(st.tuples(st.none() | st.integers(0, 50), st.integers(-10, 300)), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=3), block=st.integers(1, 40), world=st.integers(1, 10),
)  # fmt: skip
def test_any_number_of_workers_any_blocks(
    tmp_path_factory: pytest.TempPathFactory,
    labels: list[Asked],
    cuts: list[int],
    block: int,
    world: int,
) -> None:
    folder = tmp_path_factory.mktemp("share")
    task = _small(folder, labels, cuts, block)
    (folder / "task.json").write_text(task.text())
    assert TrainingSetTask.read(folder / "task.json") == task
    _done(task, folder, world)
    made = list(assemble_set(task, folder / "labels", folder / "out"))
    assert [len(one) for one in made[:-1]] == [block] * (len(made) - 1)
    whole = pa.concat_tables(read_blocks([folder / "labels" / name for name in task.labels], 1000))
    alone = build_training_set(
        whole, "at", [JoinedView(PLAN, SegmentRows(list_partition_segments(folder / "rows")))], status=True
    )
    assert pa.concat_tables(made).equals(alone)
    assert not (folder / "pieces").exists()


def test_pieces_of_an_earlier_try_are_taken(tmp_path: Path) -> None:
    task = _small(tmp_path, [(number % 45, number) for number in range(90)], [], 20)
    inputs = {"labels": str(tmp_path / "labels"), "rows": str(tmp_path / "rows" / "_")}
    build_worker_share(
        task, WorkerIdentity(1, 2, "a-1"), inputs, tmp_path / "pieces", tmp_path / "out", lambda *_: None
    )
    (tmp_path / "pieces" / ".a-1-0").write_bytes(b"torn")
    before = {path.name: path.stat().st_ino for path in (tmp_path / "pieces").glob("v*")}
    assert len(before) == 4
    told: list[int] = []
    (tmp_path / "out").mkdir()
    for rank in (2, 1, 0):  # the second try has three
        who = WorkerIdentity(rank, 3, "a-2")
        build_worker_share(task, who, inputs, tmp_path / "pieces", tmp_path / "out", lambda step, _: told.append(step))
    after = {path.name: path.stat().st_ino for path in (tmp_path / "out").iterdir()}
    assert len(after) == 8
    assert before.items() <= after.items()
    assert len(told) == 4
    assert len(pa.concat_tables(assemble_set(task, tmp_path / "labels", tmp_path / "out"))) == 90


def test_pieces_that_are_not_all_are_refused(tmp_path: Path) -> None:
    task = _small(tmp_path, [(number % 45, number) for number in range(90)], [], 20)
    _done(task, tmp_path, 2)
    with pytest.raises(CorruptData):
        list(assemble_set(replace(task, block_rows=30), tmp_path / "labels", tmp_path / "out"))
    (tmp_path / "out" / "v0000-p0003.parquet").unlink()
    with pytest.raises(CorruptData):
        list(assemble_set(task, tmp_path / "labels", tmp_path / "out"))


def test_workers_that_have_no_folder_in_common_say_so(tmp_path: Path) -> None:
    task = replace(_small(tmp_path, [(1, 1)], [], 20), away=str(tmp_path))
    with pytest.raises(Invalid, match="no folder in common"):
        _done(task, tmp_path, 2)
    _done(task, tmp_path, 1)


def test_nodes_need_numpy_and_pyarrow_and_no_falaj(tmp_path: Path) -> None:
    """The launcher carries the rest."""
    (tmp_path / "falaj-worker.pyz").write_bytes(get_launcher_archive())
    packages = sorted({str(Path(one.__file__).parents[1]) for one in (np, pa)})
    code = "import sys; sys.path[:0] = sys.argv[1:]; import falaj.asof.distributed_sets as share; print(share.__file__)"
    words = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "falaj-worker.pyz"), *packages]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "falaj" in said


def _kill_rank(rank: int, home: str, killed: list[int]) -> None:
    """End one worker as a power cut would, as soon as it lives."""
    until = time.monotonic() + PATIENCE_S
    while not killed and time.monotonic() < until:
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                known = (entry / "environ").read_bytes().split(b"\0")
                ours = any(one.startswith(b"FALAJ_CHECKPOINTS=" + home.encode()) for one in known)
                if b"spread.py" in words and f"FALAJ_RANK={rank}".encode() in known and ours and not killed:
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed.append(int(entry.name))
        time.sleep(0.02)
