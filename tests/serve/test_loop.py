"""Replicas as jobs, with the loops of a real house; what they run is a stand-in that says it serves."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.errors import Denied
from falaj.core.ref import Ref
from falaj.serve import replica_jobs
from falaj.serve.records import EndpointView
from falaj.serve.request_counts import CountRow, latency_bucket
from falaj.serve.routes import wake_endpoint
from tests.infer import models
from tests.jobs.lab import Lab, until
from tests.serve.laptop import SMALL, STAND_IN, Laptop, ready

SCORE = "endpoint:fraud/score"
REAL = replica_jobs.REPLICA_COMMAND


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    patch = pytest.MonkeyPatch()
    patch.setattr(replica_jobs, "REPLICA_COMMAND", STAND_IN)
    made = Laptop(tmp_path_factory.mktemp("laptop"))
    with made.here.working():
        yield made
        made.close()
    made.here.close()
    patch.undo()


def said(laptop: Laptop, verb: str, name: str) -> list[Any]:
    facts = laptop.here.house.ledger.tail(verb=verb, limit=10_000)
    return [fact.event for fact in facts if fact.event.subject.name.startswith(name)]


def route_of(laptop: Laptop, name: str) -> Any:
    house = laptop.here.house
    return house.desks["serve"].routes(house.system()).get(("house", f"fraud.{name}"))


def test_an_endpoint_comes_up_and_what_is_killed_is_replaced(laptop: Laptop) -> None:
    laptop.here.serve.deploy(SCORE, laptop.model(), **SMALL)
    view = laptop.until(ready)
    assert (view.state, view.traffic, view.name) == ("ready", {"1": 1.0}, "fraud.score")
    (place,) = route_of(laptop, "score").places
    assert f"{place.host}:{place.port}" == view.replicas[0].address
    first = view.replicas[0].name
    os.kill(laptop.pid(first), signal.SIGKILL)
    after = laptop.until(lambda one: ready(one) and ready(one) != [first])
    assert after.note == ""
    assert "137" in said(laptop, "serve.trouble", "score")[0].body["reason"]
    assert laptop.here.jobs.show(f"job:fraud/{first}").state == "failed"


def test_the_job_of_a_replica_carries_the_label_of_its_endpoint(laptop: Laptop) -> None:
    endpoint = "endpoint:fraud/labelled"
    folder = models.mlp(laptop.home / "labelled", seed=3)
    labelled = laptop.here.catalog.publish("model:fraud/labelled", str(folder), label="AE-PDPL,sensitive").ref
    laptop.here.serve.deploy(endpoint, labelled, **SMALL)
    laptop.until(ready, endpoint)
    laptop.here.serve.deploy(endpoint, laptop.model(seed=9))
    (name,) = ready(laptop.until(lambda one: one.traffic == {"2": 1.0}, endpoint), 2)
    job = laptop.here.jobs.show(f"job:fraud/{name}")
    house = laptop.here.house
    with house.ledger.read(house.system()) as tx:
        labels = {tx.need(ref).label.words for ref in (job.ref, job.run)}
    assert labels == {"AE-PDPL,sensitive"}
    laptop.here.serve.stop(endpoint)


def test_a_new_revision_takes_over_when_it_is_ready_and_going_back_is_at_once(laptop: Laptop) -> None:
    endpoint = "endpoint:fraud/turn"
    laptop.here.serve.deploy(endpoint, laptop.model(), **SMALL)
    (old,) = ready(laptop.until(ready, endpoint))
    laptop.here.serve.deploy(endpoint, laptop.model(seed=8), message="better")
    view = laptop.until(lambda one: one.traffic == {"2": 1.0}, endpoint)
    assert len(ready(view, 2)) == 1
    assert ready(view, 1) == [old]  # kept, for a while
    back = laptop.here.serve.rollback(endpoint, reason="worse")
    assert back.traffic == {"1": 1.0}
    assert route_of(laptop, "turn").shares == {"base": (1, 1.0)}
    forth = laptop.here.serve.rollback(endpoint, to=2)
    assert forth.traffic == {"2": 1.0}
    laptop.here.serve.scale(endpoint, keep_s=0)
    laptop.until(lambda one: [each.revision for each in one.replicas] == [2], endpoint)
    # Its replicas are gone by now: the traffic stays where it is until there is one again.
    laptop.here.serve.rollback(endpoint)
    assert laptop.show(endpoint).traffic == {"2": 1.0}
    laptop.until(lambda one: one.traffic == {"1": 1.0} and ready(one, 1), endpoint)


def test_a_model_that_cannot_be_loaded_gets_no_traffic_and_says_why(laptop: Laptop) -> None:
    endpoint = "endpoint:fraud/bad"
    laptop.here.serve.deploy(endpoint, laptop.model(), **SMALL)
    laptop.until(ready, endpoint)
    laptop.here.serve.deploy(endpoint, laptop.model(seed=8))
    view = laptop.until(lambda one: "never became ready" in one.note, endpoint)
    assert view.traffic == {"1": 1.0}
    assert view.state == "ready"
    assert "this model cannot be loaded" in view.note
    assert ready(view) == ready(view, 1) != []


@pytest.mark.slow
@pytest.mark.slow
def test_a_torch_program_comes_up_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(replica_jobs, "REPLICA_COMMAND", REAL)
    (tmp_path / "model").mkdir()
    program = torch.export.export(torch.nn.Linear(8, 2), (torch.zeros(2, 8),))
    torch.export.save(program, tmp_path / "model" / "model.pt2")
    alone = Laptop(tmp_path)
    with alone.here.working():
        model = alone.here.catalog.publish("model:fraud/program", str(tmp_path / "model")).ref
        alone.here.serve.deploy(SCORE, model, **{**SMALL, "memory": "1GiB"})
        server = alone.pid(ready(alone.until(ready))[0])
        children = Path(f"/proc/{server}/task").glob("*/children")
        words = [Path(f"/proc/{pid}/cmdline").read_bytes() for one in children for pid in one.read_text().split()]
        assert any(b"falaj.infer.runtimes.isolated_main" in one for one in words)
        alone.close()
    alone.here.close()


def test_asleep_while_nobody_asks_and_awake_when_somebody_does(laptop: Laptop) -> None:
    endpoint, house = "endpoint:fraud/sleepy", laptop.here.house
    laptop.here.serve.deploy(endpoint, laptop.model(), least=0, idle_s=0.3, **SMALL)
    laptop.until(lambda one: one.state == "asleep", endpoint)
    assert said(laptop, "serve.serving", "sleepy")  # it showed first that it works
    until(lambda: route_of(laptop, "sleepy"), lambda one: one.asleep and not one.places)
    laptop.here.serve.scale(endpoint, idle_s=60)
    assert wake_endpoint(house.ledger, house.system(), "house", Ref.parse(endpoint))
    laptop.until(ready, endpoint)
    assert not wake_endpoint(house.ledger, house.system(), "house", Ref.parse(endpoint))
    assert len(until(lambda: route_of(laptop, "sleepy"), lambda one: not one.asleep).places) == 1


@pytest.mark.slow
def test_stopped_started_and_removed(laptop: Laptop) -> None:
    endpoint = "endpoint:fraud/brief"
    laptop.here.serve.deploy(endpoint, laptop.model(), **SMALL)
    laptop.until(ready, endpoint)
    laptop.here.serve.stop(endpoint)
    assert route_of(laptop, "brief") is None
    laptop.until(lambda one: not one.replicas, endpoint)
    laptop.here.serve.start(endpoint)
    laptop.until(ready, endpoint)
    laptop.here.serve.remove(endpoint, reason="done")
    until(lambda: [str(one.ref) for one in laptop.here.serve.list().endpoints], lambda refs: endpoint not in refs)
    assert "serve.brief" not in str(laptop.here.secrets.list())


@pytest.mark.slow
def test_what_somebody_cancels_is_replaced_and_more_are_asked_for(laptop: Laptop) -> None:
    endpoint = "endpoint:fraud/many"
    laptop.here.serve.deploy(endpoint, laptop.model(), least=2, **SMALL)
    first = ready(laptop.until(lambda one: len(ready(one)) == 2, endpoint))
    laptop.here.jobs.cancel(f"job:fraud/{first[0]}")
    again = laptop.until(lambda one: len(ready(one)) == 2 and first[0] not in ready(one), endpoint)
    assert first[1] in ready(again)
    laptop.here.serve.scale(endpoint, least=1)
    # Fewer, but not before a minute has gone by: load comes back.
    assert len(laptop.show(endpoint).replicas) == 2


@pytest.mark.slow
def test_more_answer_when_more_ask(laptop: Laptop) -> None:
    endpoint, house = "endpoint:fraud/busy", laptop.here.house
    laptop.here.serve.deploy(endpoint, laptop.model(), most=3, concurrency=2.0, **SMALL)
    laptop.until(ready, endpoint)

    def busy() -> EndpointView:
        row = CountRow(
            "house", endpoint, "base", 1, time.time(), 50, 0, {latency_bucket(900): 50}, 4, 1, "gateway-1", "home"
        )
        house.desks["serve"].counts.append([row])
        return laptop.show(endpoint)

    assert len(ready(until(busy, lambda one: len(ready(one)) == 3))) == 3


@pytest.mark.slow
def test_a_replica_that_loses_its_place_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_jobs, "REPLICA_COMMAND", STAND_IN)
    laptop = Laptop(tmp_path)
    lab = Lab(tmp_path, laptop.here)
    lab.one_node()
    with laptop.here.working():
        laptop.here.serve.deploy(SCORE, laptop.model(), cpus=1.0, memory="256MiB", band="best-effort")
        (first,) = ready(laptop.until(ready))
        job = lab.submit("import time; time.sleep(3)", cpus=1.0)
        laptop.until(lambda one: not ready(one))
        waits = laptop.until(lambda one: one.replicas and one.replicas[0].name != first)
        assert "falaj jobs why" in waits.replicas[0].note
        lab.done(job)
        assert ready(laptop.until(ready)) != [first]
        assert laptop.here.jobs.show(f"job:fraud/{first}").state == "cancelled"
        laptop.close()
    laptop.here.close()


@pytest.mark.slow
def test_replicas_outlive_the_platform_and_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_jobs, "REPLICA_COMMAND", STAND_IN)
    before = Laptop(tmp_path)
    with before.here.working():
        before.here.serve.deploy(SCORE, before.model(), **SMALL)
        (name,) = ready(before.until(ready))
    before.here.close()
    pid = before.pid(name)
    after = Laptop(tmp_path)
    with after.here.working():
        assert ready(after.until(ready)) == [name]
        os.kill(pid, signal.SIGKILL)
        assert ready(after.until(lambda one: ready(one) and ready(one) != [name])) != [name]
        after.close()
    after.here.close()


@pytest.mark.slow
def test_the_same_on_postgres(tmp_path: Path, new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_jobs, "REPLICA_COMMAND", STAND_IN)
    laptop = Laptop(tmp_path, falaj.connect(str(tmp_path / "house"), store=new_postgres()))
    house = laptop.here.house
    with laptop.here.working():
        laptop.here.serve.deploy(SCORE, laptop.model(), least=0, idle_s=0.2, **SMALL)
        laptop.until(lambda one: one.state == "asleep")
        laptop.here.serve.scale(SCORE, idle_s=60)
        assert wake_endpoint(house.ledger, house.system(), "house", Ref.parse(SCORE))
        (name,) = ready(laptop.until(ready))
        until(lambda: route_of(laptop, "score"), lambda one: [each.name for each in one.places] == [name])
        laptop.close()
    laptop.here.close()


@pytest.mark.slow
def test_a_hold_keeps_what_was_approved_from_starting_again(laptop: Laptop) -> None:
    endpoint, model = "endpoint:fraud/held", laptop.model("approved")
    assert laptop.here.catalog.promote(model, "staging").state == "done"
    laptop.here.serve.deploy(endpoint, model, **SMALL)
    (name,) = ready(laptop.until(ready, endpoint))
    laptop.here.catalog.hold(model, "case 7")
    os.kill(laptop.pid(name), signal.SIGKILL)
    view = laptop.until(lambda one: "under a hold: case 7" in one.note, endpoint)
    assert not view.replicas
    assert view.state == "failing"
    laptop.here.catalog.release(model, "case 7")
    laptop.until(lambda one: ready(one) and not one.note, endpoint)


def test_a_model_that_is_deleted_answers_no_more(laptop: Laptop) -> None:
    endpoint, model = "endpoint:fraud/doomed", laptop.model("doomed")
    laptop.here.serve.deploy(endpoint, model, **SMALL)
    laptop.until(ready, endpoint)
    laptop.here.catalog.delete(model, "it was trained on what we may not use")
    view = laptop.until(lambda one: not one.replicas and "was deleted" in one.note, endpoint)
    assert view.state == "failing"
    until(lambda: route_of(laptop, "doomed"), lambda one: not one.places)


def test_a_model_that_is_restricted_answers_no_more(laptop: Laptop) -> None:
    endpoint, model = "endpoint:fraud/contested", laptop.model("contested")
    laptop.here.serve.deploy(endpoint, model, **SMALL)
    laptop.until(ready, endpoint)
    laptop.here.catalog.restrict(model, "its accuracy is contested")
    view = laptop.until(lambda one: not one.replicas and "restricted" in one.note, endpoint)
    assert view.state == "failing"
    until(lambda: route_of(laptop, "contested"), lambda one: not one.places)
    with pytest.raises(Denied, match="restricted"):
        laptop.here.serve.deploy("endpoint:fraud/second", model, **SMALL)


def test_a_second_look_finds_nothing_to_do(laptop: Laptop) -> None:
    """An endpoint at rest writes nothing: the loop looks at it ever again. Its watch may only now read its model."""
    laptop.until(lambda one: one.state == "ready")
    before = laptop.here.house.ledger.store.end()
    seen: list[EndpointView] = []
    until(lambda: seen.append(laptop.show()) or len(seen), lambda count: count > 40)
    facts = laptop.here.house.ledger.tail(before, limit=10_000)
    mine = [fact.event.verb for fact in facts if fact.event.subject.name.startswith("score")]
    assert set(mine) <= {"serve.show", "catalog.open"}
