"""Experiments and runs as their users meet them: what is kept, what is refused, who sees what."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from falaj.cli import output
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.records import Metric, UsedData
from tests.people import enroll
from tests.town import LABEL, Town, refusal

EXPERIMENT = "experiment:fraud/scoring"


def test_a_run_from_start_to_end(amal: Any) -> None:
    run = amal.track.start(EXPERIMENT, title="first", params={"lr": "0.1"}, tags={"team": "risk"}, started=1000.5)
    assert (run.status, run.started, run.ended, run.author) == ("running", 1000.5, 0.0, "amal")
    assert amal.track.log(run.ref, metrics=(Metric("loss", 0.5, 1.0, 1), Metric("loss", 0.4, 2.0, 2))) == 2
    assert amal.track.log(run.ref, params={"depth": "7"}, tags={"note": "ok"}, drop=("team",)) == 3
    ended = amal.track.end(run.ref, ended=2000.25)
    assert (ended.status, ended.ended) == ("finished", 2000.25)
    shown = amal.track.show(run.ref)
    assert shown == ended
    assert shown.params == {"lr": "0.1", "depth": "7"}
    assert shown.tags == {"note": "ok"}
    assert shown.metrics == {"loss": Metric("loss", 0.4, 2.0, 2)}
    assert [point.value for point in amal.track.history(run.ref, "loss").points] == [0.5, 0.4]


def test_numbers_that_json_does_not_know(amal: Any, run: Ref) -> None:
    for step, value in enumerate((math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0)):
        amal.track.log(run, metrics=(Metric("odd", value, 1.0, step),))
    points = amal.track.history(run, "odd").points
    assert [point.odd for point in points] == ["nan", "inf", "-inf", "", "", ""]
    assert math.isnan(points[0].number)
    assert [point.number for point in points[1:]] == [math.inf, -math.inf, 1e308, 5e-324, -0.0]
    assert amal.track.list(where="metrics.odd < 1").runs


def test_the_same_point_again_is_kept_once(amal: Any, run: Ref) -> None:
    for _ in range(3):
        amal.track.log(run, metrics=(Metric("loss", math.nan, 1.0, 1), Metric("loss", 2.0, 1.0, 1)))
    assert len(amal.track.history(run, "loss").points) == 2


def test_a_param_is_written_once(amal: Any, run: Ref) -> None:
    amal.track.log(run, params={"lr": "0.1"})
    amal.track.log(run, params={"lr": "0.1", "more": "x"})
    with pytest.raises(Invalid, match="cannot become"):
        amal.track.log(run, params={"lr": "0.2", "other": "y"})
    assert amal.track.show(run).params == {"lr": "0.1", "more": "x"}


@pytest.mark.parametrize(
    "said",
    [
        {"params": {"": "x"}},
        {"params": {"k" * 251: "x"}},
        {"params": {"k": "x" * 8001}},
        {"params": {"k\n": "x"}},
        {"params": {"k": "a\0b"}},
        {"tags": {"k": "x" * 8001}},
        {"params": {f"p{n}": "x" for n in range(10_001)}},
        {"metrics": (Metric("", 1.0),)},
        {"metrics": (Metric("a\0", 1.0),)},
        {"metrics": (Metric("a", 1.0, 1.0, 2**63),)},
        {"metrics": (Metric("a", 1.0),) * 10_001},
    ],
)
def test_what_is_too_much_is_refused_and_leaves_nothing(amal: Any, run: Ref, said: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        amal.track.log(run, **said)
    shown = amal.track.show(run)
    assert (shown.params, shown.tags, shown.metrics) == ({}, {}, {})


def test_the_longest_of_everything_is_fine(amal: Any, run: Ref) -> None:
    key, value = "ك" * 250, "ق" * 8000
    amal.track.log(run, params={key: value}, tags={key: value}, metrics=(Metric(key, 1.0, 1.0, 2**63 - 1),))
    amal.track.log(run, metrics=(Metric(key, 2.0, 1.0, -(2**63) + 1),))
    assert amal.track.show(run).metrics[key].value == 1.0
    assert amal.track.history(run, key).points[0].value == 2.0


def test_an_id_that_is_kept_gives_the_same_run(amal: Any) -> None:
    id_ = "0123456789abcdef" * 2
    first = amal.track.start(EXPERIMENT, run=id_, params={"a": "b"})
    assert amal.track.start(EXPERIMENT, run=id_) == first
    amal.track.create("experiment:other/one")
    with pytest.raises(Conflict):
        amal.track.start("experiment:other/one", run=id_)
    for wrong in ("x", "A" * 32, "../" + "a" * 29):
        with pytest.raises(Invalid):
            amal.track.start(EXPERIMENT, run=wrong)


def test_experiments_have_a_number_and_a_title_of_their_own(town: Town, amal: Any) -> None:
    made = amal.track.create("experiment:fraud/second", title="ما هو الاحتيال؟ ✓", tags={"team": "risk"})
    assert made.id.isdigit()
    track = town.house.track
    assert track.find_titled("bank", made.title) == (made.ref,)
    assert track.experiment_ref("bank", made.id) == made.ref
    assert (track.experiment_ref("clinic", made.id), track.find_titled("clinic", made.title)) == (None, ())
    for name, title in (("experiment:fraud/second", "new"), ("experiment:fraud/third", made.title)):
        with pytest.raises(Conflict):
            amal.track.create(name, title=title)
    with pytest.raises(Conflict):
        amal.track.change(EXPERIMENT, title=made.title)
    changed = amal.track.change(made.ref, title="New", tags={"a": "b"}, drop=("team",))
    assert (changed.title, changed.tags, changed.id) == ("New", {"a": "b"}, made.id)
    amal.track.change(EXPERIMENT, title="ما هو الاحتيال؟ ✓")


def test_the_default_experiment_is_number_0(town: Town, amal: Any) -> None:
    ref = town.house.track.experiment_ref("bank", "0")
    assert ref is not None
    made = amal.track.create(str(ref))
    assert (made.id, made.title) == ("0", "Default")


def test_experiments_are_searched_in_the_same_language(amal: Any) -> None:
    for name, team in (("fraud/a1", "risk"), ("fraud/a2", "ops"), ("other/b1", "risk")):
        amal.track.create(f"experiment:{name}", tags={"team": team})
    found = amal.track.experiments(where="tags.team = 'risk' and name LIKE 'a%'").experiments
    assert [one.title for one in found] == ["a1"]
    assert len(amal.track.experiments(project="fraud").experiments) == 3
    page = amal.track.experiments(order=("name DESC",), limit=3)
    rest = amal.track.experiments(order=("name DESC",), limit=3, after=page.next)
    assert [one.title for one in (*page.experiments, *rest.experiments)] == ["b1", "a2", "a1", "Scoring"]
    assert rest.next == ""
    assert [one.title for one in amal.track.experiments(title="a2").experiments] == ["a2"]


def test_deleted_is_put_away_and_can_be_had_back(amal: Any, run: Ref) -> None:
    amal.track.log(run, metrics=(Metric("a", 1.0),))
    amal.track.delete(run)
    assert amal.track.list().runs == ()
    assert [one.ref for one in amal.track.list(state="deleted").runs] == [run]
    for act in (lambda: amal.track.log(run, tags={"a": "b"}), lambda: amal.track.end(run)):
        assert isinstance(refusal(act), Invalid)
    amal.track.restore(run)
    assert amal.track.list().runs[0].metrics["a"].value == 1.0
    amal.track.delete(EXPERIMENT)
    assert amal.track.experiments().experiments == ()
    assert isinstance(refusal(lambda: amal.track.start(EXPERIMENT)), Invalid)
    amal.track.restore(EXPERIMENT)
    assert amal.track.start(EXPERIMENT)


def test_a_status_can_be_taken_back_and_a_name_changed_alone(amal: Any, run: Ref) -> None:
    amal.track.end(run, status="failed", ended=5.0)
    assert amal.track.end(run, status="", title="renamed").ended == 5.0
    again = amal.track.end(run, status="running")
    assert (again.status, again.ended, again.title) == ("running", 0.0, "renamed")
    assert isinstance(refusal(lambda: amal.track.end(run, status="done")), Invalid)


def test_curves_are_read_in_pages_and_drawn_in_bins(amal: Any, run: Ref) -> None:
    for start in range(0, 1000, 250):
        amal.track.log(run, metrics=tuple(Metric("a", float(n), float(n), n) for n in range(start, start + 250)))
    page = amal.track.history(run, "a", limit=600)
    rest = amal.track.history(run, "a", limit=600, after=page.next)
    assert [point.step for point in (*page.points, *rest.points)] == list(range(1000))
    assert (rest.next, page.total, rest.total) == ("", None, None), "nobody has counted them"
    assert amal.track.history(run, "a").total == 1000
    drawn = amal.track.history(run, "a", bins=10)
    assert (len(drawn.points), drawn.total) == (20, 1000)
    assert amal.track.history(run, "nothing").points == ()
    for wrong in ({"limit": 0}, {"limit": 10**6}, {"bins": -1}, {"after": "x"}):
        with pytest.raises(Invalid):
            amal.track.history(run, "a", **wrong)


def test_runs_are_compared(amal: Any) -> None:
    runs = []
    for lr, loss in (("0.1", 0.5), ("0.2", 0.3), ("0.3", math.nan)):
        made = amal.track.start(EXPERIMENT, params={"lr": lr, "model": "tree"})
        amal.track.log(made.ref, metrics=(Metric("loss", loss, 1.0), Metric("same", 1.0, 1.0)))
        runs.append(made.ref)
    amal.track.log(runs[0], params={"extra": "x"})
    found = amal.track.compare(runs)
    assert [(one.key, one.values) for one in found.differences] == [
        ("extra", ("x", "", "")),
        ("lr", ("0.1", "0.2", "0.3")),
        ("loss", ("0.5", "0.3", "nan")),
    ]
    loss = found.differences[-1]
    assert (loss.lowest, loss.highest) == (runs[1], runs[0])
    assert (found.same_params, found.same_metrics) == (1, 1)
    assert isinstance(refusal(lambda: amal.track.compare(runs[:1])), Invalid)


def test_what_a_run_used_is_its_lineage_and_its_label(town: Town, amal: Any) -> None:
    data = town.as_("salem").store.put("blob:fraud/tx", b"rows", label=LABEL)
    run = amal.track.start(EXPERIMENT, inputs={"data": "blob:fraud/tx"})
    assert run.label.classification == 2
    assert run.inputs[0].ref == data
    event = town.events(verb="track.start")[-1]
    assert event.inputs == (data,)
    plain = amal.track.start(EXPERIMENT)
    assert plain.label.classification == 0
    foreign = UsedData("iris", "abc", "http", "https://example.org/iris.csv", tags={"mlflow.data.context": "train"})
    used = amal.track.use(plain.ref, data=(foreign,), inputs=("blob:fraud/tx",))
    assert used.label.classification == 2
    assert [one.name for one in used.inputs] == ["iris", "tx"]
    assert amal.track.use(plain.ref, data=(foreign,)).inputs == used.inputs
    assert amal.track.list(where="dataset.context = 'train'").runs[0].ref == plain.ref
    sneaky = UsedData("x", ref=Ref.parse("blob:fraud/tx@v1"))
    assert isinstance(refusal(lambda: amal.track.use(plain.ref, data=(sneaky,))), Invalid)


def test_nobody_else_sees_or_touches_them(town: Town, amal: Any, run: Ref) -> None:
    amal.track.log(run, metrics=(Metric("a", 1.0),))
    sara = town.as_("sara")
    assert sara.track.list().runs == () == sara.track.experiments(state="all").experiments
    acts: list[Callable[[], Any]] = [
        lambda: sara.track.show(run),
        lambda: sara.track.history(run, "a"),
        lambda: sara.track.list(experiments=(EXPERIMENT,)),
        lambda: sara.track.log(run, metrics=(Metric("a", 2.0),)),
        lambda: sara.track.end(run),
        lambda: sara.track.delete(run),
        lambda: sara.track.start(EXPERIMENT),
        lambda: sara.track.fetch(run, "a"),
    ]
    for act in acts:
        assert isinstance(refusal(act), NotFound)
    assert town.house.track.run_ref("clinic", run.name) is None
    assert town.house.track.run_ref("bank", run.name) == run


def test_roles_decide(town: Town, amal: Any, run: Ref) -> None:
    omar, badr = town.as_("omar"), town.as_("badr")
    assert omar.track.show(run).ref == badr.track.show(run).ref == run
    for person in (omar, badr):
        assert isinstance(refusal(lambda person=person: person.track.log(run, tags={"a": "b"})), Denied)
        assert isinstance(refusal(lambda person=person: person.track.start(EXPERIMENT)), Denied)


def test_projects_bound_a_person(town: Town, amal: Any, run: Ref) -> None:
    town.tokens["tala"] = enroll(
        town.as_("fatima"), "tala", ("data-scientist",), projects=("other",), jurisdiction="AE"
    )
    tala = town.as_("tala")
    assert tala.track.list().runs == ()
    assert tala.track.experiments().experiments == ()
    assert isinstance(refusal(lambda: tala.track.show(run)), FalajError)
    tala.track.create("experiment:other/mine")
    mine = tala.track.start("experiment:other/mine").ref
    assert [one.ref for one in tala.track.list().runs] == [mine]
    assert {one.ref for one in amal.track.list().runs} == {run, mine}


def test_a_sensitive_run_is_seen_by_who_may_see_it(town: Town, amal: Any) -> None:
    town.as_("salem").store.put("blob:fraud/tx", b"rows", label=LABEL)
    hidden = amal.track.start(EXPERIMENT, inputs={"data": "blob:fraud/tx"}).ref
    open_ = amal.track.start(EXPERIMENT).ref
    town.as_("fatima").policy.add(
        "no-sensitive", "forbid (principal, action, resource) when { resource.classification >= 2 };"
    )
    assert [one.ref for one in amal.track.list().runs] == [open_]
    assert isinstance(refusal(lambda: amal.track.show(hidden)), (NotFound, Denied))


def test_a_named_request_twice_is_one(town: Town, amal: Any, run: Ref) -> None:
    house = town.house
    arguments = {"run": run, "metrics": (Metric("a", 1.0),), "params": None, "tags": None, "drop": ()}
    for _ in range(2):
        ctx = house.context(town.actor("amal"), request_id="once", purpose="fraud")
        assert house.call("track", "log", ctx, arguments) == 1
    assert len(amal.track.history(run, "a").points) == 1
    assert len(town.events(verb="track.log")) == 1


def test_named_requests_that_commit_together_write_their_points_together_and_first(
    town: Town, run: Ref, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a request is remembered its repeat writes nothing: so its points are durable before that."""
    house = town.house
    series, calls, told = house.track.measures._series, list[int](), list[int]()
    append = series.append

    def watched(blocks: Any) -> None:
        calls.append(len(blocks))
        told.append(len(house.ledger.tail(verb="track.log")))
        append(blocks)

    monkeypatch.setattr(series, "append", watched)
    with house.ledger.group():
        for step in range(5):
            ctx = house.context(town.actor("amal"), request_id=f"once-{step}", purpose="fraud")
            point = Metric("a", 1.0, 1.0, step)
            asked = {"run": run, "metrics": (point,), "params": None, "tags": None, "drop": ()}
            assert house.call("track", "log", ctx, asked) == 1
    assert (calls, told) == ([5], [0])
    assert len(town.events(verb="track.log")) == 5


def test_points_in_the_ledgers_own_database_are_committed_with_their_event(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path, store=postgres_url)
    amal, series = town.as_("amal"), town.house.track.measures._series
    made = amal.track.create("experiment:fraud/one")
    run = amal.track.start(made.ref).ref
    monkeypatch.setattr(series, "append", lambda blocks: pytest.fail("they are not written by themselves"))
    amal.track.log(run, metrics=(Metric("a", 1.0, 1.0, 0),))
    with town.house.ledger.group():
        for step in (1, 2):
            amal.track.log(run, metrics=(Metric("a", 1.0, 1.0, step),))
            amal.track.log(run, tags={"step": str(step)})
        with pytest.raises(Invalid):
            amal.track.log(run, metrics=(Metric("b", 1.0),), params={"": "no name"})
    assert [one.step for one in amal.track.history(run, "a").points] == [0, 1, 2]
    assert set(amal.track.show(run).metrics) == {"a"}
    with psycopg.connect(postgres_url) as raw:
        shared = "SELECT count(DISTINCT id) FROM blocks WHERE xid IN (SELECT xid FROM events WHERE verb = 'track.log')"
        assert raw.execute(shared).fetchone() == (3,)
    town.close()


def test_what_was_refused_measured_nothing(town: Town, amal: Any, run: Ref) -> None:
    """A call whose transaction is undone leaves no point behind."""
    amal.track.log(run, params={"lr": "1"})
    with pytest.raises(Invalid):
        amal.track.log(run, metrics=(Metric("a", 1.0),), params={"lr": "2"})
    assert amal.track.show(run).metrics == {}


def test_calls_that_commit_together_write_their_points_together(
    town: Town, amal: Any, run: Ref, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = town.house.track.measures._series
    calls: list[int] = []
    append = series.append
    monkeypatch.setattr(series, "append", lambda blocks: (calls.append(len(blocks)), append(blocks)))
    with town.house.ledger.group():
        for step in range(20):
            amal.track.log(run, metrics=(Metric("a", 1.0, 1.0, step),))
        with pytest.raises(Invalid):
            amal.track.log(run, metrics=(Metric("", 1.0),))
        assert calls == []
    assert calls == [20]
    assert len(amal.track.history(run, "a").points) == 20


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    town = Town(tmp_path)
    here = town.as_("amal")
    here.track.create(EXPERIMENT)
    run = here.track.start(EXPERIMENT, params={"a": "b"}).ref
    here.track.log(run, metrics=tuple(Metric("a", float(n), 1.0, n) for n in range(100)))
    here.track.end(run)
    before = here.track.show(run)
    tokens = town.tokens
    town.close()
    from falaj.server import LocalClient, Server, load_settings

    house = Server(load_settings(str(tmp_path), {"zone": "ae-dubai"}))
    again = LocalClient(house, house.authenticate(tokens["amal"]), "fraud")
    assert again.track.show(run) == before == again.track.list().runs[0]
    assert len(again.track.history(run, "a").points) == 100
    house.close()


def test_a_curve_is_printed_as_it_was_measured(amal: Any, run: Ref, capsys: pytest.CaptureFixture[str]) -> None:
    for step, value in enumerate((0.5, math.nan, -math.inf)):
        amal.track.log(run, metrics=(Metric("odd", value, 7.0, step),))
    output.print_result(amal.track.history(run, "odd"))
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["total", "3"] in lines
    assert [line[1] for line in lines[-3:]] == ["0.5", "nan", "-inf"]
