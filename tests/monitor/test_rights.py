"""Whose a watch is: under its endpoint's label, in the name of who deployed or changed it, seen by nobody else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.core.errors import FalajError, NotFound
from falaj.core.ref import Ref
from falaj.drift.profiles import encode_profile
from falaj.drift.records import PROFILE_FILE
from falaj.monitor.monitor_loop import MonitorLoop
from falaj.store.reconcile_loop import LoopIteration, system_context
from tests.infer import models
from tests.monitor.ground import profile
from tests.town import Town, refusal

ENDPOINT = Ref.parse("endpoint:fraud/score")


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    home = tmp_path_factory.mktemp("town")
    made = Town(home)
    made.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
    folder = models.mlp(home / "model")
    (folder / PROFILE_FILE).write_bytes(encode_profile(profile(2000)))
    amal = made.as_("amal")
    model = amal.catalog.publish("model:fraud/scorer", str(folder), label="AE-PDPL,sensitive,purpose=fraud").ref
    amal.serve.add(ENDPOINT, model)
    yield made
    made.close()


def turn(town: Town, after_s: float = 0.0) -> None:
    loop = MonitorLoop(town.house.ledger, town.house.desks["monitor"])
    ctx = system_context("monitor", town.house.settings.zone)
    then = ctx.now
    loop.step(LoopIteration(replace(ctx, now=lambda: then() + after_s), 1, lambda: True))


def test_a_watch_is_as_secret_as_its_endpoint_and_acts_for_its_owner(town: Town) -> None:
    turn(town)
    amal = town.as_("amal")
    assert [str(one.ref) for one in amal.monitor.list()] == [str(ENDPOINT)]
    assert amal.monitor.show(ENDPOINT).baseline == "model:fraud/scorer@v1"
    ctx = replace(town.house.system(), tenant="bank")
    with town.house.ledger.read(ctx) as tx:
        watch, endpoint = tx.need(Ref.parse("watch:fraud/score")), tx.need(ENDPOINT)
    assert (watch.label, watch.zone) == (endpoint.label, endpoint.zone)
    assert watch.label.classification == 2
    told = {(event.verb, event.behalf) for event in town.events() if event.verb in ("catalog.open", "monitor.baseline")}
    assert told == {("catalog.open", "amal"), ("monitor.baseline", "amal")}
    sara = town.as_("sara")
    assert sara.monitor.list() == ()
    for call in (lambda: sara.monitor.show(ENDPOINT), lambda: sara.monitor.change(ENDPOINT, {"rollback": "true"})):
        assert isinstance(refusal(call), NotFound)
    assert isinstance(refusal(lambda: town.as_("badr").monitor.change(ENDPOINT, {"rollback": "true"})), FalajError)
    # Who changes it answers for it from then on.
    town.as_("mona").monitor.change(ENDPOINT, {"every_s": "60"})
    with town.house.ledger.read(ctx) as tx:
        assert tx.need(Ref.parse("watch:fraud/score")).body["who"]["id"] == "mona"


def test_an_owner_who_may_not_any_more_leaves_a_note_and_a_loop_that_goes_on(town: Town, tmp_path: Path) -> None:
    mona, other = town.as_("mona"), Ref.parse("endpoint:fraud/other")
    label = "AE-PDPL,sensitive,purpose=fraud"
    model = mona.catalog.publish("model:fraud/other", str(models.mlp(tmp_path / "m", seed=3)), label=label).ref
    mona.serve.add(other, model)
    town.as_("fatima").people.suspend("mona")
    turn(town)
    shown = {str(one.ref): one for one in town.as_("amal").monitor.list()}
    assert "cannot be used" in shown[str(other)].note
    turn(town, 60)
    assert len([event for event in town.events(verb="guard.deny") if event.body["action"] == "catalog.open"]) == 1
