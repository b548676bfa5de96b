"""The loop of watches, turn by turn: windows of what replicas counted, each delta once, whatever happens in between."""

import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.drift.profiles import encode_profile
from falaj.drift.tally import DataTally
from falaj.monitor.baseline_search import MIN_TRAFFIC_ROWS
from falaj.monitor.client_commands import format_report
from falaj.serve.drift_counts import DriftCountRow
from falaj.serve.late_labels import LabelRow
from tests.infer import models
from tests.monitor.ground import FEW, MINUTE, NAMES, Ground, columns, good, profile
from tests.serve.laptop import forget

PROFILE = good(profile(), 0.9)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ground, Ref]]:
    """One house for all, and a model with a profile of its own."""
    made = Ground(tmp_path_factory.mktemp("watches"))
    yield made, made.model(with_=PROFILE)
    made.close()


@pytest.fixture
def ground(first: tuple[Ground, Ref], request: pytest.FixtureRequest) -> Ground:
    name = re.sub(r"[^a-z]+", "-", request.node.name)[:60].strip("-")
    return Ground(first[0].home, first[0].here, name).watched(first[1])


def test_a_deployed_model_is_watched_by_itself_against_its_own_profile(ground: Ground) -> None:
    shown = ground.here.monitor.show(ground.ref)
    assert (shown.state, shown.revision, shown.windows, shown.note) == ("ok", 1, 0, "")
    assert shown.baseline == "model:fraud/scorer@v1"
    assert ground.ref in [one.ref for one in ground.here.monitor.list()]
    told = ground.events("monitor.add")
    assert (len(told), told[0].body["by_itself"]) == (1, 1)
    assert ground.desk.baselines.of("house", ground.ref, 1) is not None
    assert ground.desk.baselines.of("house", ground.ref, 2) is None


def test_windows_find_the_column_that_moved_and_count_every_delta_once(ground: Ground) -> None:
    """Late, out of order, the same again, from a clock that is ahead: nothing twice, and nothing lost."""
    at = ground.begun
    first = [ground.count(300, at + 20 + n * 10, replica=f"r1-{n}") for n in range(3)]
    late, again = ground.count(150, at + 50), first[0]
    broken = ground.count(9, at + 30, replica="r1-7")._replace(data=b"no tally")  # it hides none of the others
    ground.append(first[2], broken, first[0], first[1], again)
    ground.turns(at + MINUTE + 5)
    (one,) = ground.windows()
    assert (one.rows, one.alarms, one.number, one.since, one.until) == (900, 0, 1, at, at + MINUTE)
    ahead = ground.count(200, at + 9000, replica="r1-9", shift=2.0)
    ground.append(late, again, *(ground.count(400, at + 70 + n, shift=2.0) for n in range(3)), ahead)
    ground.turns(at + 2 * MINUTE + 5)
    two = ground.windows()[-1]
    assert (two.rows, two.number) == (150 + 1200 + 200, 2)
    assert "150 rows came late" in two.note
    assert "the clock of r1-9 is ahead" in two.note
    moved = [one.column for one in two.findings if one.alarm and one.what == "input"]
    assert moved == [NAMES[0]]
    ground.turns(at + 5 * MINUTE)
    assert len(ground.windows()) == 2
    assert ground.here.monitor.show(ground.ref).alarms == 1
    page = ground.here.monitor.windows(ground.ref, since_s=1e9, limit=1)
    assert [one.number for one in page.windows] == [2]
    rest = ground.here.monitor.windows(ground.ref, since_s=1e9, after=page.next)
    assert ([one.number for one in rest.windows], rest.next) == ([1], "")
    figures = ground.figures(6 * MINUTE)
    assert (figures.rows, figures.axes[0].name, len(figures.windows)) == (900 + 150 + 1200, NAMES[0], 2)
    assert "since" in "\n".join(format_report(figures, "a report"))


def test_few_rows_wait_for_more_and_nobody_asking_costs_no_window(ground: Ground) -> None:
    at = ground.begun
    ground.append(ground.count(80, at + 10), ground.count(80, at + 3 * MINUTE + 10))
    ground.turns(at + 5 * MINUTE)
    assert ground.windows() == []
    before = ground.record.rev
    ground.turns(at + 6 * MINUTE)
    assert ground.record.rev == before  # a look that finds nothing writes nothing
    ground.append(ground.count(80, at + 7 * MINUTE + 1))
    ground.turns(at + 9 * MINUTE)
    (one,) = ground.windows()
    assert (one.since, one.until, one.rows) == (at, at + 8 * MINUTE, 240)
    ground.append(ground.count(20, at + 20 * MINUTE))
    ground.turns(at + 60 * MINUTE)
    last = ground.windows()[-1]
    assert (last.rows, last.until - last.since) == (20, 24 * MINUTE)
    assert "too few rows to compare: 20 of 200" in last.note
    assert not [one for one in last.findings if one.what == "input"]


def test_errors_and_latency_need_no_baseline_and_a_few_of_a_few_prove_nothing(ground: Ground) -> None:
    ground.here.monitor.change(ground.ref, {"latency_ms": "50", "errors": "0.05"})
    at = ground.begun
    ground.ask(at + 5, 300, errors=30, took_us=80_000)
    ground.turns(at + MINUTE + 5)
    (one,) = ground.windows()
    assert {finding.what: finding.alarm for finding in one.findings} == {"errors": True, "latency": True}
    assert (one.requests, one.errors, round(one.p95_ms)) == (300, 30, 82)
    (seen,) = ground.desk.glance(ground.house.system(), ground.record, at + 30)
    assert (seen.revision, seen.requests, seen.errors, seen.rows) == (1, 300, 30, 0)
    ground.append(ground.count(10, at + 70))
    ground.ask(at + 75, 60, errors=40, took_us=900)  # what fails is told of, however few rows there are
    ground.turns(at + 2 * MINUTE + 5)
    assert (len(ground.windows()), ground.windows()[-1].rows, ground.windows()[-1].alarms) == (2, 10, 1)
    ground.ask(at + 130, 210, errors=12, took_us=900)
    ground.turns(at + 3 * MINUTE + 5)
    assert (len(ground.windows()), ground.windows()[-1].alarms) == (3, 0)


def test_labels_of_requests_that_nobody_kept_are_joined_with_the_rows_that_were_drawn(ground: Ground) -> None:
    at, rng = ground.begun, np.random.default_rng(5)
    ids = [f"{int((at + 5) * 1000):012x}{number:020x}" for number in range(600)]
    ground.append(ground.count(600, at + 10, ids=ids), ground.count(300, at + 70))
    drawn = {one for row in ground.desk.serve.sketches.read("house", ground.ref) for one in _drawn(ground, row)}
    assert drawn == {"", *ids}
    scores = columns(600, seed=1)["score"]
    truth = np.where(rng.random(600) < 0.6, scores >= 0.5, scores < 0.5)  # six of ten are right
    late = [LabelRow(at + 20, id_, "", float(one)) for id_, one in zip(ids, truth, strict=True)]
    ground.log(at + 5, ids[:100], scores[:100].tolist())  # some were kept as well: they count once
    ground.desk.serve.labels.append(ground.whose, [*late, LabelRow(at + 21, generate_id(), "", 1.0)])
    ground.turns(at + 2 * MINUTE + 5)
    window = ground.windows()[0]
    (found,) = [one for one in window.findings if one.what == "performance" and one.measure == "accuracy"]
    assert window.labels == 600
    assert (found.alarm, found.value) == (True, pytest.approx(0.6, abs=0.06))
    forget(ground.here, ground.ref, tuple(ids[:7]))
    left = {one for row in ground.desk.serve.sketches.read("house", ground.ref) for one in _drawn(ground, row)}
    assert left == {"", *ids[7:]}


def _drawn(ground: Ground, row: DriftCountRow) -> tuple[str, ...]:
    profile = ground.desk.baselines.profile("house", ground.ref, 1)
    assert profile is not None
    return DataTally.from_bytes(row.data, profile).sample.ids


def test_labels_that_come_late_tell_how_good_it_was(ground: Ground) -> None:
    """By when they came, few of them wait; floods are cut, and labels of nobody are told of."""
    at = ground.begun
    ids = [generate_id() for _ in range(400)]
    scores = np.random.default_rng(3).random(400)
    truth = np.where(np.random.default_rng(4).random(400) < 0.6, scores >= 0.5, scores < 0.5)  # six of ten are right
    ground.log(at + 5, ids, scores.round(4).tolist())
    keep = [LabelRow(at + 100, id_, "", float(one)) for id_, one in zip(ids, truth, strict=True)]
    ground.append(ground.count(400, at + 10), ground.count(400, at + 100), ground.count(400, at + 130))
    ground.desk.serve.labels.append(ground.whose, keep[:50])
    ground.turns(at + 2 * MINUTE + 5)
    assert ground.windows()[-1].labels == 50
    assert "50 labelled rows wait until there are 100" in ground.windows()[-1].note
    ground.desk.serve.labels.append(ground.whose, [one._replace(at=at + 140) for one in keep[50:]])
    ground.desk.serve.labels.append(ground.whose, [LabelRow(at + 141, generate_id(), "", 1.0)])
    ground.turns(at + 3 * MINUTE + 5)
    last = ground.windows()[-1]
    (found,) = [one for one in last.findings if one.what == "performance" and one.measure == "accuracy"]
    assert (last.labels, found.alarm, found.value < 0.7, found.then) == (400, True, True, 0.9)
    # Nobody asks any more, and labels go on coming: a window of their own, on the same answers.
    ground.desk.serve.labels.append(ground.whose, [one._replace(at=at + 250) for one in keep])
    ground.turns(at + 5 * MINUTE + 5)
    assert (ground.windows()[-1].rows, ground.windows()[-1].labels) == (0, 400)
    count = len(ground.windows())
    ground.turns(at + 9 * MINUTE)
    assert len(ground.windows()) == count  # a drought says nothing


def test_two_revisions_have_windows_of_their_own(ground: Ground) -> None:
    ground.here.serve.add(ground.ref, ground.model())
    ledger = ground.house.ledger
    with ledger.write(ground.house.system()) as tx:
        old = tx.need(ground.ref)
        trial = {"kind": "canary", "arms": {"base": 1, "new": 2}, "shares": {"base": 0.9, "new": 0.1}}
        body = {**old.body, "current": 1, "rollout": {**trial, "state": "running"}}
        tx.put(old.key, body, rev=old.rev)
        tx.emit("serve.step", old.ref)
    ground.turn()
    at = ground.begun
    ground.append(ground.count(300, at + 10), ground.count(300, at + 12, replica="r2-1", revision=2, shift=3.0))
    ground.turns(at + MINUTE + 5)
    found = {one.revision: bool([f for f in one.findings if f.alarm and f.what == "input"]) for one in ground.windows()}
    assert found == {1: False, 2: True}


def test_killed_between_keeping_a_window_and_its_verdict_it_is_judged_once(ground: Ground) -> None:
    """A real process, killed inside the transaction after the window was kept."""
    at = ground.begun
    ground.append(ground.count(300, at + 10))
    ground.now = at + MINUTE + 5
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(ground,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert len(ground.windows()) == 1  # kept, and not judged
    assert ground.record.body["windows"] == 0
    ground.append(ground.count(70, at + 20))
    ground.turns(ground.now)
    ground.turns(ground.now)
    (one,) = ground.windows()
    assert (one.rows, ground.record.body["windows"], ground.judged()) == (370, 1, 1)


def _killed(ground: Ground) -> None:
    keep = ground.desk.kept.append

    def last(*what: Any) -> None:
        keep(*what)
        os.kill(os.getpid(), signal.SIGKILL)

    ground.desk.kept.append = last
    ground.turn(loop=ground.fresh())


def test_two_that_both_think_they_lead_judge_no_window_twice(ground: Ground) -> None:
    at, other = ground.begun, ground.fresh()
    ground.append(ground.count(300, at + 10))
    ground.turn(loop=other)
    ground.turns(at + MINUTE + 5)
    ground.turn(loop=other)  # it decided on what it read before
    ground.turn(loop=other)
    assert (len(ground.windows()), ground.judged()) == (1, 1)
    ground.turn(at + 3 * MINUTE, alive=False)


def test_remove_keeps_it_off_and_add_brings_it_back(ground: Ground) -> None:
    ground.here.monitor.remove(ground.ref, reason="a demo")
    ground.turn()
    at = ground.begun
    ground.append(ground.count(300, at + 10))
    ground.turns(at + MINUTE + 5)
    assert ground.windows() == []
    assert ground.ref not in [one.ref for one in ground.here.monitor.list()]
    for verb in (ground.here.monitor.show, ground.here.monitor.figures):
        with pytest.raises(NotFound, match="not watched"):
            verb(ground.ref)
    ground.here.monitor.add(ground.ref, more={**FEW, "rollback": "true"})
    assert ground.here.monitor.show(ground.ref).plan.acting.rollback
    ground.turns(ground.now)
    assert len(ground.windows()) == 1
    with pytest.raises(Conflict, match="watched already"):
        ground.here.monitor.add(ground.ref)


def test_bad_input_is_one_clear_error_and_nothing_is_written(ground: Ground) -> None:
    monitor, before = ground.here.monitor, ground.record.rev
    for error, said, call in (
        (NotFound, "no endpoint:fraud/nobody", lambda: monitor.add("endpoint:fraud/nobody")),
        (Invalid, "names no endpoint", lambda: monitor.add("model:fraud/scorer")),
        (Invalid, "has no 'colour'", lambda: monitor.change(ground.ref, {"colour": "red"})),
        (Invalid, "no column 'city'", lambda: monitor.change(ground.ref, {"segment": "city"})),
        (Invalid, "every_s", lambda: monitor.change(ground.ref, {"every_s": "-4"})),
        (Invalid, "errors", lambda: monitor.change(ground.ref, plan={"errors": 7})),
        (Invalid, "nothing is to be otherwise", lambda: monitor.change(ground.ref)),
        (Invalid, "no cursor", lambda: monitor.windows(ground.ref, after="x")),
        (Invalid, "a page of 0", lambda: monitor.windows(ground.ref, limit=0)),
        (Conflict, "revision 9", lambda: monitor.figures(ground.ref, revision=9)),
    ):
        with pytest.raises(error, match=said):
            call()
    assert ground.record.rev == before


def test_a_model_without_a_profile_is_compared_with_its_first_traffic(first: Any, tmp_path: Path) -> None:
    ground = Ground(tmp_path, first[0].here, "bare")
    model = ground.here.catalog.publish("model:fraud/bare", str(models.mlp(tmp_path / "bare", seed=8))).ref
    ground.here.serve.add(ground.ref, model)
    ground.turn()
    assert "waits for 1,000 requests in the journal" in ground.here.monitor.show(ground.ref).note
    scores = np.random.default_rng(5).random(MIN_TRAFFIC_ROWS).round(4).tolist()
    ground.log(ground.begun + 1, [generate_id() for _ in scores], scores)
    ground.turn(ground.begun + 40)
    shown = ground.here.monitor.show(ground.ref)
    assert (shown.baseline, shown.note) == ("traffic", "")
    made = ground.desk.baselines.profile("house", ground.ref, 1)
    assert [(axis.name, axis.role) for axis in made.axes] == [
        *((one, "input") for one in NAMES),
        ("score", "prediction"),
    ]
    assert made.tensors == {"x": NAMES, "score": ("score",)}


def test_a_broken_profile_is_said_and_the_training_data_is_asked_once(first: Any, tmp_path: Path) -> None:
    ground = Ground(tmp_path, first[0].here, "broken")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text("a,b\n1,2\n")
    data = ground.here.catalog.publish("dataset:fraud/tx", str(tmp_path / "rows")).ref
    model = ground.model(9, with_=replace(PROFILE, rows=-1), inputs={"data": data})
    ground.here.serve.add(ground.ref, model)
    ground.turn()
    shown = ground.here.monitor.show(ground.ref)
    assert shown.note == f"job:fraud/baseline-scorer-{model.version} makes it from dataset:fraud/tx@v1"
    job = ground.here.jobs.show(f"job:fraud/baseline-scorer-{model.version}")
    assert {role: str(ref) for role, ref in job.inputs.items()} == {"model": str(model), "data": str(data)}
    assert str(job.outputs["profile"].bare) == "dataset:fraud/scorer.baseline"
    ground.here.jobs.cancel(job.ref)
    for n in range(1, 4):
        ground.turn(ground.begun + n * 10)
    assert "cancelled" in ground.here.monitor.show(ground.ref).note
    assert len([one for one in ground.here.jobs.list(project="fraud").jobs if "baseline" in one.ref.name]) == 1
    # What somebody makes by hand from this very model is taken, whenever it comes.
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "falaj.profile.json").write_bytes(encode_profile(PROFILE))
    inputs = {"model": model, "data": data}
    ground.here.catalog.publish("dataset:fraud/scorer.baseline", str(tmp_path / "made"), inputs=inputs)
    ground.turn(ground.begun + 90)
    assert ground.here.monitor.show(ground.ref).baseline == "dataset:fraud/scorer.baseline@v1"


def test_an_endpoint_that_is_gone_takes_its_watch_along(ground: Ground) -> None:
    at = ground.begun
    ground.append(ground.count(300, at + 10))
    ground.turns(at + MINUTE + 5)
    with ground.house.ledger.write(ground.house.system()) as tx:
        old = tx.need(ground.ref)
        tx.delete(old.key, old.rev)
        tx.emit("serve.removed", old.ref)
    ground.turn()
    assert ground.windows() == []
    with pytest.raises(NotFound):
        _ = ground.record
    ground.turn()


def test_what_always_returns_is_no_alarm_and_what_is_new_is_one(ground: Ground) -> None:
    """A season of four minutes, whose last one is always another: known from the second time on."""
    ground.here.monitor.change(ground.ref, {"season_s": "240"})
    at = ground.begun
    for n in range(12):
        shift = (2.0 if n < 11 else -3.0) if n % 4 == 3 else 0.0
        ground.append(ground.count(1500, at + n * MINUTE + 30, shift=shift))
    ground.turns(at + 13 * MINUTE)
    moved = [any(f.alarm and f.column == NAMES[0] for f in one.findings) for one in ground.windows()]
    assert moved == [False, False, False, True, *[False] * 7, True]


def test_two_versions_of_a_dataset_are_compared_without_an_endpoint(first: Any, tmp_path: Path) -> None:
    here, rng, refs = first[0].here, np.random.default_rng(2), []
    for number, mean in enumerate((0.0, 1.0)):
        (tmp_path / str(number)).mkdir()
        lines = "\n".join(f"{a:.4f},{b:.4f}" for a, b in zip(rng.normal(mean, 1, 900), rng.random(900), strict=True))
        (tmp_path / str(number) / "rows.csv").write_text(f"amount,age\n{lines}\n")
        refs.append(here.catalog.publish("dataset:fraud/months", str(tmp_path / str(number))).ref)
    made = here.monitor.report(str(refs[0]), against=str(refs[1]))
    assert [one.column for one in made.figures.findings if one.alarm and one.what == "input"] == ["amount"]
    assert made.lines[0] == "dataset:fraud/months@v2 against dataset:fraud/months@v1"


def test_another_endpoint_of_the_same_name_is_watched_anew(ground: Ground) -> None:
    at = ground.begun
    ground.append(ground.count(300, at + 10))
    ground.turns(at + MINUTE + 5)
    with ground.house.ledger.write(ground.house.system()) as tx:
        old = tx.need(ground.ref)
        tx.put(old.key, {**old.body, "id": generate_id()}, rev=old.rev)
        tx.emit("serve.add", old.ref)
    ground.turn()
    assert (ground.windows(), ground.record.body["counted"]) == ([], {})
    assert ground.here.monitor.show(ground.ref).baseline == "none yet"
    ground.turn(at + 2 * MINUTE)
    assert ground.here.monitor.show(ground.ref).baseline == "model:fraud/scorer@v1"
