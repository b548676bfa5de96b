"""Who may deploy what, who may call it, and what is refused: in a town with tenants, labels and gates."""

import os
import pickle
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.serve import replica_jobs, serving_checks
from falaj.serve.serve_loop import ServeLoop
from falaj.store.reconcile_loop import LoopIteration
from tests.infer import models
from tests.serve.laptop import SMALL, STAND_IN, Laptop, ready
from tests.town import LABEL, Town, refusal

SCORE = "endpoint:fraud/score"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    made.as_("admin").clusters.change("local", {"tenants": "bank"})
    yield made
    made.close()


@pytest.fixture(scope="module")
def published(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ref]:
    home = tmp_path_factory.mktemp("models")

    def publish(name: str = "scorer", seed: int = 7, **more: Any) -> Ref:
        folder = models.mlp(home / f"{name}-{seed}", seed=seed)
        ref: Ref = town.as_("amal").catalog.publish(f"model:fraud/{name}", str(folder), **more).ref
        return ref

    return publish


def checked(town: Town, model: Ref, stage: str, root: str = "") -> Any:
    """What the loop asks before every start."""
    ctx = CallContext(town.house.system().actor, "ae-dubai", tenant="bank")
    with town.house.ledger.read(ctx) as tx:
        return serving_checks.check_servable(tx, ctx, model, stage, root)


def changed(town: Town, model: Ref, **more: Any) -> None:
    """A hand in the ledger that should not be there."""
    ctx = CallContext(town.house.system().actor, "ae-dubai", tenant="bank")
    with town.house.ledger.write(ctx) as tx:
        old = tx.need(model)
        kept = tx.put(old.key, {**old.body, **more}, rev=old.rev)
        tx.emit("test.changed", kept.ref)


def test_an_endpoint_carries_the_label_of_its_model_and_its_tenant_alone_sees_it(
    town: Town, published: Callable[..., Ref]
) -> None:
    view = town.as_("mona").serve.deploy(SCORE, published(label=LABEL), **SMALL)
    assert (view.state, view.name, view.revisions[0].made_by) == ("starting", "fraud.score", "mona")
    assert town.as_("amal").serve.enter(SCORE).name == "fraud.score"
    assert isinstance(refusal(lambda: town.as_("amal", "marketing").serve.enter(SCORE)), Denied)
    assert isinstance(refusal(lambda: town.as_("omar").serve.enter(SCORE)), Denied)
    assert isinstance(refusal(lambda: town.as_("omar").serve.scale(SCORE, least=2)), Denied)
    sara = town.as_("sara")
    assert sara.serve.list().endpoints == ()
    for act in (sara.serve.show, sara.serve.enter, sara.serve.stop, sara.serve.rollback):
        assert isinstance(refusal(lambda act=act: act(SCORE)), NotFound)
    system = town.house.system()
    route = town.house.desks["serve"].routes(system)["bank", "fraud.score"]
    assert "AE-PDPL" in route.label
    assert len(route.key) >= 32
    assert route.key not in str(view)
    assert town.house.desks["serve"].routes(system) is town.house.desks["serve"].routes(system)
    assert ("clinic", "fraud.score") not in town.house.desks["serve"].routes(system)


def test_an_endpoint_of_the_same_name_has_another_key(town: Town, published: Callable[..., Ref]) -> None:
    salem, mona, house = town.as_("salem"), town.as_("mona"), town.house
    model, found = published("again"), []
    for _ in range(2):
        mona.serve.deploy("endpoint:fraud/again", model, **SMALL)
        found.append(house.desks["serve"].routes(house.system())["bank", "fraud.again"].key)
        salem.serve.remove("endpoint:fraud/again")
        ServeLoop(house.ledger, house.desks["serve"]).step(LoopIteration(house.system(), 1, lambda: True))
    assert found[0] != found[1]
    assert isinstance(refusal(lambda: mona.serve.show("endpoint:fraud/again")), NotFound)


def test_entering_is_recorded_once_a_minute(town: Town, published: Callable[..., Ref]) -> None:
    town.as_("mona").serve.deploy("endpoint:fraud/often", published("often"), **SMALL)
    for _ in range(50):
        town.as_("amal").serve.enter("endpoint:fraud/often")
    assert len(town.events(verb="serve.enter", name="often")) == 1


def test_what_is_not_signed_or_not_as_it_was_signed_is_refused(town: Town, published: Callable[..., Ref]) -> None:
    mona, model = town.as_("mona"), published("forged")
    mona.serve.deploy("endpoint:fraud/forged", model, **SMALL)
    for more, wanted in (({"files": {"model.onnx": "0" * 64}}, CorruptData), ({"signature": ""}, Denied)):
        before = checked(town, model, "").body
        changed(town, model, **more)
        assert isinstance(refusal(lambda: checked(town, model, "")), wanted)
        assert isinstance(refusal(lambda: mona.serve.deploy("endpoint:fraud/other", model)), wanted)
        changed(town, model, **{name: before[name] for name in more})
    assert checked(town, model, "").ref == model
    assert isinstance(refusal(lambda: checked(town, model, "", "another root")), CorruptData)


def test_a_model_that_runs_code_is_refused(town: Town, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.pkl").write_bytes(pickle.dumps(Path))
    model = town.as_("amal").catalog.publish("model:fraud/pickled", str(tmp_path / "model")).ref
    error = refusal(lambda: town.as_("mona").serve.deploy("endpoint:fraud/pickled", model))
    assert isinstance(error, Denied)
    assert "may run code" in error.message
    assert isinstance(refusal(lambda: town.as_("mona").serve.show("endpoint:fraud/pickled")), NotFound)


def test_a_torch_program_may_be_served_alone_and_goes_to_no_edge(town: Town, tmp_path: Path) -> None:
    amal, mona = town.as_("amal"), town.as_("mona")
    (tmp_path / "model").mkdir()
    with zipfile.ZipFile(tmp_path / "model" / "model.pt2", "w") as archive:
        archive.writestr("model/models/model.json", "{}")
        archive.writestr("model/archive_format", "pt2")
    model = amal.catalog.publish("model:fraud/program", str(tmp_path / "model")).ref
    mona.serve.deploy("endpoint:fraud/program", model, **SMALL)
    assert mona.catalog.show(model).card.code_bearing  # Where a stage demands a safe format, it is none.
    error = refusal(lambda: mona.serve.pack("endpoint:fraud/program", ("0" * 64,), "branch", revision=1))
    assert "code of its own" in error.message
    (tmp_path / "model" / "more.pkl").write_bytes(pickle.dumps(Path))
    beside = amal.catalog.publish("model:fraud/program", str(tmp_path / "model")).ref
    assert "may run code" in refusal(lambda: mona.serve.deploy("endpoint:fraud/program", beside)).message


def test_where_a_project_has_rules_only_what_was_approved_is_served_and_only_so_long(
    town: Town, tmp_path: Path
) -> None:
    amal, mona = town.as_("amal"), town.as_("mona")
    town.as_("salem").catalog.require("gate:lending/production", ("signature", "1 approval"))
    folder = models.mlp(tmp_path / "model")
    model = amal.catalog.publish("model:lending/scorer", str(folder)).ref
    error = refusal(lambda: mona.serve.deploy("endpoint:lending/score", model, **SMALL))
    assert isinstance(error, Denied)
    assert "promote" in error.hint
    asked = amal.catalog.promote(model, "production", reason="the first")
    town.as_("badr").approvals.give(asked.approval, asked.digest)
    assert amal.catalog.promote(model, "production").state == "done"
    view = mona.serve.deploy("endpoint:lending/score", "model:lending/scorer@production", **SMALL)
    assert view.revisions[0].model == model
    assert checked(town, model, "production").ref == model
    town.as_("bilal").approvals.refuse(asked.approval, reason="it was not looked at")
    assert "taken back" in refusal(lambda: checked(town, model, "production")).message


def test_what_makes_no_sense_is_said(town: Town, published: Callable[..., Ref]) -> None:
    mona, model = town.as_("mona"), published("plain")
    plain = "endpoint:fraud/plain"
    for act, wanted in (
        (lambda: mona.serve.deploy("model:fraud/x", model), Invalid),
        (lambda: mona.serve.deploy(plain, "dataset:fraud/x"), Invalid),
        (lambda: mona.serve.deploy(plain, "model:fraud/none"), NotFound),
        (lambda: mona.serve.deploy(plain, model, least=3, most=2), Invalid),
        (lambda: mona.serve.deploy(plain, model, canary="10%", **SMALL), Conflict),
        (lambda: mona.serve.deploy(plain, model, canary="10%", ab="50%"), Invalid),
        (lambda: mona.serve.deploy(plain, model, judge=True), Invalid),
        (lambda: mona.serve.deploy(plain, model, canary="a lot"), Invalid),
        (lambda: mona.serve.deploy(plain, model, cluster="nowhere"), Invalid),
        (lambda: mona.serve.deploy(plain, model, env={"FALAJ_TOKEN": "x"}), Invalid),
        (lambda: mona.serve.deploy(plain, model, sample=2.0), Invalid),
    ):
        assert isinstance(refusal(act), wanted)
    assert isinstance(refusal(lambda: mona.serve.show(plain)), NotFound), "something of it was kept"
    mona.serve.deploy(plain, model, **SMALL)
    for act, wanted in (
        (lambda: mona.serve.rollback(plain), Conflict),
        (lambda: mona.serve.rollback(plain, to=7), Conflict),
        (lambda: mona.serve.scale(plain, concurrency=0), Invalid),
        (lambda: mona.serve.change(plain, {"per_second": "1"}), Invalid),
        (lambda: mona.serve.change(plain, {"per_s": "fast"}), Invalid),
    ):
        assert isinstance(refusal(act), wanted)


def test_two_endpoints_cannot_be_called_by_one_name(town: Town, published: Callable[..., Ref]) -> None:
    mona = town.as_("mona")
    model = published("twin")
    mona.serve.deploy("endpoint:fraud/a.b", model, **SMALL)
    error = refusal(lambda: mona.serve.deploy("endpoint:fraud.a/b", model, **SMALL))
    assert isinstance(error, Conflict)
    assert "fraud.a.b" in error.message


def test_rules_and_scale_change_and_what_is_not_said_stays(town: Town, published: Callable[..., Ref]) -> None:
    mona, endpoint = town.as_("mona"), "endpoint:fraud/ruled"
    mona.serve.deploy(endpoint, published("ruled"), per_s=10.0, burst=20, least=2, **SMALL)
    mona.serve.change(endpoint, {"timeout_s": "5", "sticky": "customer"})
    mona.serve.scale(endpoint, least=3)
    view = mona.serve.deploy(endpoint, published("ruled", seed=8), concurrency=4.0, message="the second")
    assert (view.rules.per_s, view.rules.timeout_s, view.rules.sticky) == (10.0, 5.0, "customer")
    assert (view.scale.least, view.scale.most, view.scale.concurrency) == (3, 3, 4.0)
    assert view.revisions[1].needs == view.revisions[0].needs
    assert [one.number for one in view.revisions] == [1, 2]
    entry = town.as_("amal").serve.enter(endpoint)
    assert (entry.per_s, entry.burst) == (10.0, 20)


@pytest.mark.slow
def test_replicas_of_a_labelled_model_run_for_whoever_deployed_it_and_no_longer(
    town: Town, published: Callable[..., Ref], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_jobs, "REPLICA_COMMAND", STAND_IN)
    mona, endpoint = town.as_("mona"), "endpoint:fraud/labelled"
    for view in mona.serve.list().endpoints:
        mona.serve.stop(view.ref)
    laptop = Laptop(Path(town.house.settings.home), mona)
    with town.house.working():
        mona.serve.deploy(endpoint, published("labelled", label=LABEL), **SMALL)
        (name,) = ready(laptop.until(ready, endpoint))
        assert name in [one.ref.name for one in mona.jobs.list(mine=True).jobs]
        town.as_("fatima").people.suspend("mona")
        os.kill(laptop.pid(name), signal.SIGKILL)
        amal = Laptop(laptop.home, town.as_("amal"))
        view = amal.until(lambda one: "it cannot start" in one.note, endpoint)
        assert view.replicas == ()
        town.as_("fatima").people.resume("mona")
        laptop.until(ready, endpoint)
        laptop.close()
