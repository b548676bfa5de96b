"""What is written and done about windows, with real records: in a town, with an endpoint whose loops stand still."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, StaleRevision
from falaj.core.ref import Ref
from falaj.drift.records import DriftFinding, DriftRules
from falaj.monitor.records import ActionPlan, MonitorWindow, WatchPlan
from falaj.monitor.watch_operations import make_watch_ref
from falaj.serve import state_machine
from falaj.serve.request_counts import CountRow, latency_bucket
from falaj.serve.sealed_blocks import RowOwner
from falaj.server import Server
from falaj.store.records import LedgerRecord
from tests.infer import models
from tests.monitor.test_challenge import both
from tests.serve.laptop import SMALL
from tests.town import Town, refusal

FLOW = Ref.parse("flow:fraud/retrain")
ACTS = WatchPlan(every_s=60.0, acting=ActionPlan(retrain=FLOW, rollback=True, cool_s=600.0))
HOUR = 3600.0


class Ground:
    """A town and its desk of watches; `ground.watched()` is an endpoint of its own with a watch on it."""

    def __init__(self, home: Path) -> None:
        self.town = Town(home / "town")
        self.house = self.town.house
        self.town.as_("admin").clusters.change("local", {"tenants": "bank"})
        self.desk = self.house.desks["monitor"]
        self.ledger = self.house.ledger
        self.mona = self.town.as_("mona")
        folders = [models.mlp(home / f"m{seed}", seed=seed) for seed in (1, 2)]
        self.models = [self.mona.catalog.publish("model:fraud/scorer", str(one)).ref for one in folders]
        self.made = 0
        self.later_s = 0.0

    @property
    def ctx(self) -> CallContext:
        system = self.house.system()
        return replace(system, tenant="bank", now=lambda: system.now() + self.later_s)

    def watched(self, plan: WatchPlan = ACTS) -> Ref:
        """An endpoint whose first revision has all traffic."""
        self.made += 1
        endpoint = Ref.parse(f"endpoint:fraud/score{self.made}")
        self.mona.serve.deploy(endpoint, self.models[0], **SMALL)
        self.switch(endpoint, 1)
        self.mona.monitor.add(endpoint, plan)
        self.tend(endpoint)
        return endpoint

    def switch(self, endpoint: Ref, to: int) -> None:
        """What the loop of endpoints does when replicas are ready."""
        with self.ledger.write(self.ctx) as tx:
            old = tx.need(endpoint)
            tx.emit(
                "test.switch",
                tx.put(old.key, state_machine.switch_traffic(old.body, to, self.ctx.now()), rev=old.rev).ref,
            )

    def record(self, endpoint: Ref) -> LedgerRecord:
        with self.ledger.read(self.ctx) as tx:
            return tx.need(make_watch_ref(endpoint))

    def windows(self, endpoint: Ref, *kinds: str, revision: int = 1) -> LedgerRecord:
        """One more window for each, with an alarm of this kind; an empty one has none."""
        record = self.record(endpoint)
        for number, what in enumerate(kinds, 1):
            alarm = DriftFinding(
                what, "age", measure="ks", value=0.3, p=0.0, rows=1000, alarm=True, said=f"{what}: age rose"
            )
            window = MonitorWindow(number * HOUR, (number + 1) * HOUR, revision, 1000, (alarm,) if what else ())
            record = self.desk.judged(self.ctx, record, window)
        return record

    def tend(self, endpoint: Ref) -> bool:
        ctx = self.ctx
        found: bool = self.desk.tend(ctx, self.record(endpoint), ctx.now())
        return found

    def state(self, endpoint: Ref) -> str:
        return str(self.mona.monitor.show(endpoint).state)

    def events(self, endpoint: Ref, *verbs: str) -> list[Any]:
        """What the log says of it."""
        found = [one for one in self.town.events() if one.verb in verbs]
        return [one for one in found if str(endpoint) in (one.body.get("endpoint"), str(one.subject.bare))]

    def flow_says(self, verb: str, cause: str, **body: str) -> None:
        """What the room of flows writes down of a run."""
        with self.ledger.write(self.ctx) as tx:
            tx.emit(verb, Ref.parse("turn:fraud/retrain-1@r1"), cause=cause, **body)

    def requests(self, endpoint: Ref, revision: int, requests: int, errors: int) -> None:
        """What a gateway counted in this second."""
        row = CountRow("bank", str(endpoint), "base", revision, self.ctx.now(), requests, errors,
                      {latency_bucket(100): requests}, 0, 0, "gateway-1", "ae-dubai")  # fmt: skip
        self.desk.serve.counts.append([row])


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("ground"))
    yield made
    made.town.close()


def test_drift_is_told_of_and_retrained_for_once(ground: Ground) -> None:
    endpoint = ground.watched()
    ground.windows(endpoint, "input", "input", "input", "input")
    verdicts = ground.events(endpoint, "monitor.verdict")
    assert len(verdicts) == 1, "the event is the action, and there is one of it"
    said = verdicts[0]
    assert (said.body["action"], said.body["flow"], said.body["endpoint"]) == ("retrain", str(FLOW), str(endpoint))
    assert (said.behalf, said.body["model"]) == ("mona", str(ground.models[0]))
    assert ground.models[0] in said.inputs, "lineage: which model, which endpoint"
    view = ground.mona.monitor.show(endpoint)
    assert (view.state, len(view.incidents)) == ("acting", 1)
    alert = ground.events(endpoint, "monitor.alert")[0]
    assert (alert.body["incident"], alert.body["what"]) == (str(view.incidents[0]), "drift")
    assert alert.body["said"] == said.body["said"] == "input age: ks 0.3", "the log holds no value that came"
    assert "age rose" in ground.mona.monitor.incident(view.incidents[0]).said
    assert not ground.tend(endpoint), "nothing is known of the flow yet"

    ground.flow_says("flows.start", said.body["id"])
    ground.tend(endpoint)
    ground.flow_says("flows.end", "another-cause", state="failed", note="of somebody else")
    ground.flow_says("flows.end", said.body["id"], state="failed", note="no rows in the data")
    assert ground.tend(endpoint)
    retrain = next(one for one in ground.mona.monitor.verdicts(endpoint) if one.action == "retrain")
    assert (retrain.state, retrain.run) == ("failed", "turn:fraud/retrain-1")
    assert "no rows in the data" in retrain.outcome
    assert retrain.evidence[0].column == "age"
    assert ground.state(endpoint) == "cooling"
    alerts = ground.events(endpoint, "monitor.alert")
    assert [one.body["what"] for one in alerts] == ["drift", "drift"], "a retraining that failed is told of"
    assert "no rows in the data" in alerts[1].body["said"]
    assert "no rows in the data" in ground.mona.monitor.incident(view.incidents[0]).notes[-1]
    ground.windows(endpoint, *["input"] * 5)
    assert len(ground.events(endpoint, "monitor.verdict")) == 1


def test_a_platform_that_begins_anew_hears_what_came_of_it(ground: Ground) -> None:
    endpoint = ground.watched()
    ground.windows(endpoint, "input", "input")
    id_ = ground.events(endpoint, "monitor.verdict")[0].body["id"]
    ground.tend(endpoint)
    ground.flow_says("flows.start", id_)
    ground.flow_says("flows.end", id_, state="succeeded", note="worse in 2 of 3 segments")
    del ground.desk.__dict__["_flow_follower"]  # all that a process had in mind
    ground.tend(endpoint)
    retrain = ground.mona.monitor.verdicts(endpoint)[0]
    assert (retrain.state, retrain.outcome) == ("done", "not deployed: worse in 2 of 3 segments")
    assert ground.state(endpoint) == "cooling"


def test_what_was_decided_on_an_old_watch_is_not_written(ground: Ground) -> None:
    endpoint = ground.watched()
    record = ground.windows(endpoint, "input")
    late = MonitorWindow(HOUR, 2 * HOUR, 1, 1000, (DriftFinding("input", "age", alarm=True),))
    ground.desk.judged(ground.ctx, record, late)
    assert isinstance(refusal(lambda: ground.desk.judged(ground.ctx, record, late)), StaleRevision)
    assert len(ground.events(endpoint, "monitor.verdict", "monitor.alert")) == 2


@pytest.mark.parametrize("says", ["give", "refuse"])
def test_somebody_must_agree_first(ground: Ground, says: str) -> None:
    endpoint = ground.watched(replace(ACTS, acting=replace(ACTS.acting, approval=True)))
    ground.windows(endpoint, "input", "input")
    assert ground.events(endpoint, "monitor.verdict") == []
    ground.tend(endpoint)
    ground.tend(endpoint)
    mine = ground.mona.approvals.list(action="monitor.retrain", state="waiting")
    assert len(mine) == 1, "asked once"
    assert mine[0].approval.reason == f"retrain for {endpoint}: input age: ks 0.3"
    badr = ground.town.as_("badr").approvals
    if says == "give":
        badr.give(mine[0].ref)
    else:
        badr.refuse(mine[0].ref, "not before the audit")
    assert ground.tend(endpoint)
    retrain = next(one for one in ground.mona.monitor.verdicts(endpoint) if one.action == "retrain")
    begun = [one.body["id"] for one in ground.events(endpoint, "monitor.verdict")]
    if says == "give":
        assert (retrain.state, begun) == ("begun", [retrain.id])
    else:
        assert (retrain.state, begun) == ("refused", [])
        assert "not before the audit" in retrain.outcome
        ground.later_s += HOUR
        ground.windows(endpoint, *["input"] * 4)
        assert ground.events(endpoint, "monitor.verdict") == [], "no second one for this cause"


def test_a_broken_revision_is_left_and_the_endpoint_frozen(ground: Ground) -> None:
    endpoint = ground.watched()
    ground.mona.serve.deploy(endpoint, ground.models[1])
    ground.requests(endpoint, 1, 1000, 1)
    ground.switch(endpoint, 2)
    ground.tend(endpoint)  # that there is a new one is taken note of
    assert not ground.tend(endpoint), "nobody asked it yet"
    ground.requests(endpoint, 2, 40, 40)
    assert ground.tend(endpoint)
    back = ground.events(endpoint, "serve.rollback")
    assert [(one.body["to"], one.behalf) for one in back] == [(1, "mona")]
    assert "40 of 40 requests failed" in back[0].body["reason"]
    assert not ground.tend(endpoint), "its replicas do not run yet: it is waited for, and not asked for again"
    assert len(ground.events(endpoint, "serve.rollback")) == 1
    ground.switch(endpoint, 1)
    assert ground.tend(endpoint)
    assert ground.state(endpoint) == "frozen"
    ground.windows(endpoint, *["input"] * 3)
    assert [one.body["action"] for one in ground.events(endpoint, "monitor.verdict")] == ["rollback"]
    assert ground.mona.monitor.resume(endpoint).state == "confirmed"


def test_killed_between_the_verdict_and_the_act(ground: Ground) -> None:
    endpoint = ground.watched()
    ground.mona.serve.deploy(endpoint, ground.models[1])
    ground.switch(endpoint, 2)
    ground.requests(endpoint, 2, 40, 40)
    act, ground.desk._do_action = ground.desk._do_action, lambda *_: False
    try:
        ground.tend(endpoint)
    finally:
        del ground.desk._do_action
    assert act is not None
    assert ground.events(endpoint, "serve.rollback") == []
    assert ground.state(endpoint) == "acting"
    assert ground.tend(endpoint), "the next turn finds it proposed"
    assert len(ground.events(endpoint, "serve.rollback")) == 1


def test_an_owner_without_rights_does_nothing(ground: Ground) -> None:
    endpoint = ground.watched()
    ground.mona.serve.deploy(endpoint, ground.models[1])
    ground.switch(endpoint, 2)
    ground.requests(endpoint, 2, 40, 40)
    ground.town.as_("fatima").people.suspend("mona")
    try:
        ground.tend(endpoint)
        ground.tend(endpoint)
    finally:
        ground.town.as_("fatima").people.resume("mona")
    assert ground.events(endpoint, "serve.rollback") == []
    rollback = next(one for one in ground.mona.monitor.verdicts(endpoint) if one.action == "rollback")
    assert rollback.state == "failed"
    assert len(ground.events(endpoint, "monitor.alert")) == 2


def test_paused_nothing_is_done_and_people_are_told(ground: Ground) -> None:
    endpoint = ground.watched()
    view = ground.mona.monitor.pause(endpoint, "the feed is being changed")
    assert (view.state, view.paused) == ("paused", "the feed is being changed (mona)")
    ground.windows(endpoint, "input", "input", "input")
    assert ground.events(endpoint, "monitor.verdict") == []
    assert len(ground.events(endpoint, "monitor.alert")) == 1
    view = ground.mona.monitor.resume(endpoint)
    assert (view.state, view.paused) == ("confirmed", "")
    ground.windows(endpoint, "input")
    assert len(ground.events(endpoint, "monitor.verdict")) == 1
    assert isinstance(refusal(lambda: ground.town.as_("omar").monitor.pause(endpoint)), Denied)
    assert isinstance(refusal(lambda: ground.town.as_("sara").monitor.pause(endpoint)), NotFound)


def test_incidents_are_worked_on(ground: Ground) -> None:
    endpoint = ground.watched()
    ground.windows(endpoint, "quality", "quality", "quality")
    ref = ground.mona.monitor.show(endpoint).incidents[0]
    mona, amal = ground.mona.monitor, ground.town.as_("amal").monitor
    found = next(one for one in amal.incidents(project="fraud", state="open") if one.ref == ref)
    assert (found.endpoint, found.what, found.since, found.findings[0].column) == (endpoint, "quality", HOUR, "age")
    assert ground.events(endpoint, "monitor.verdict") == [], "broken data is no reason to train"
    assert amal.incident(ref) == found
    one = mona.acknowledge(ref, "the feed was late")
    assert (one.state, one.acknowledged_by, one.notes) == ("acknowledged", "mona", ("mona: the feed was late",))
    assert isinstance(refusal(lambda: mona.acknowledge(ref)), Conflict)
    assert amal.note(ref, "asked the bank").notes[-1] == "amal: asked the bank"
    assert isinstance(refusal(lambda: mona.resolve(ref, " ")), Invalid)
    one = mona.resolve(ref, "the bank changed its codes")
    assert (one.state, one.resolved_by, one.cause) == ("resolved", "mona", "the bank changed its codes")
    assert ground.state(endpoint) == "ok"
    assert isinstance(refusal(lambda: mona.resolve(ref, "again")), Conflict)
    assert isinstance(refusal(lambda: mona.note(endpoint, "no incident")), Invalid)
    assert ref not in [each.ref for each in mona.incidents(state="open")]

    ground.windows(endpoint, "quality", "quality")
    assert ground.mona.monitor.show(endpoint).incidents == (ref,), "it is back: the same incident, open again"
    found = next(each for each in mona.incidents(state="open") if each.ref == ref)
    assert "it was resolved by mona" in found.notes[-1]
    ground.windows(endpoint, "", "", "")
    found = next(each for each in mona.incidents() if each.ref == ref)
    assert (found.state, found.resolved_by, found.cause) == ("resolved", "falaj", "gone by itself")
    told = [each.verb for each in ground.town.events() if each.subject.bare == ref]
    assert [each for each in told if each != "monitor.incident"] == [
        "monitor.alert", "monitor.acknowledge", "monitor.note", "monitor.resolve", "monitor.alert", "monitor.resolve",
    ]  # fmt: skip


def test_a_shadow_is_compared_by_labels(ground: Ground) -> None:
    endpoint = ground.watched()
    assert isinstance(refusal(lambda: ground.mona.monitor.challenge(endpoint)), Conflict)
    ground.mona.serve.deploy(endpoint, ground.models[1], shadow="100%")
    view = ground.mona.monitor.challenge(endpoint)
    assert (view.champion, view.challenger, view.pairs, view.verdict) == (1, 2, 0, "wait")
    assert "no request" in view.said
    now = ground.ctx.now()
    rows = [one for number in range(150) for one in both(f"r{number}", 0.0, 1.0, at=now)]
    ground.desk.serve.journal.append(RowOwner("bank", endpoint, "ae-dubai"), rows)
    ground.mona.serve.label(endpoint, {f"r{number}": 1.0 for number in range(150)})
    view = ground.mona.monitor.challenge(endpoint, output="y")
    assert (view.pairs, view.labelled, view.same, view.verdict) == (150, 150, 0.0, "better")
    assert isinstance(refusal(lambda: ground.mona.monitor.challenge(endpoint, how="value")), Invalid)


def test_a_policy_is_replayed_on_windows_that_are_kept(ground: Ground) -> None:
    endpoint = ground.watched(WatchPlan())
    now = ground.ctx.now()
    for number in range(1, 6):
        found = DriftFinding("input", "age", measure="ks", value=0.3, p=1e-9, rows=1000, alarm=True, said="age rose")
        span = now - (6 - number) * HOUR, now - (5 - number) * HOUR
        window = MonitorWindow(*span, 1, 1000, (found,) if number > 1 else (), number=number)
        ground.desk.kept.append(RowOwner("bank", endpoint, "ae-dubai"), window)
    before = len(ground.town.events())
    told = ground.mona.monitor.replay(endpoint)
    assert (told.windows, [one.action for one in told.verdicts]) == (5, ["alert"])
    told = ground.mona.monitor.replay(endpoint, more={"retrain": "flow:fraud/retrain"}, since="4h")
    assert [one.action for one in told.verdicts] == ["alert", "retrain"]
    assert "age rose" in "\n".join(told.lines)
    told = ground.mona.monitor.replay(endpoint, plan=replace(ACTS, rules=DriftRules(least_step=0.5)))
    assert (told.verdicts, set(told.states)) == ((), {"ok"})
    assert isinstance(refusal(lambda: ground.mona.monitor.replay(endpoint, since="soon")), Invalid)
    changed = [one.verb for one in ground.town.events()[before:]]
    assert set(changed) == {"monitor.show", "monitor.windows"}, "it only looks"
    assert ground.mona.monitor.verdicts(endpoint) == ()


def test_two_platforms_do_one_thing(ground: Ground) -> None:
    endpoint = ground.watched()
    ground.mona.serve.deploy(endpoint, ground.models[1])
    ground.switch(endpoint, 2)
    ground.requests(endpoint, 2, 40, 40)
    other = Server(ground.house.settings)
    try:
        seen, ctx = ground.record(endpoint), ground.ctx
        assert ground.desk.tend(ctx, seen, ctx.now())
        late = refusal(lambda: other.desks["monitor"].tend(ctx, seen, ctx.now()))
        assert isinstance(late, StaleRevision), "it decided the same, on what was no longer so"
        assert not other.desks["monitor"].tend(ctx, ground.record(endpoint), ctx.now())
    finally:
        other.close()
    assert len(ground.events(endpoint, "serve.rollback")) == 1
    assert len(ground.events(endpoint, "monitor.verdict")) == 1
