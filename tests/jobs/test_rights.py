"""Whose job it is: nobody sees, reads or stops another tenant's; an attempt has its submitter's rights and no more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Denied, Invalid, NotFound, Unauthenticated
from falaj.jobs.attempts import to_workload
from falaj.server import LocalClient
from tests.jobs.lab import Lab, until
from tests.town import Town, refusal

SECRET = "a-very-quiet-word-4711"


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "town")
    made.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
    with made.house.working():
        yield made
    made.close()


@pytest.fixture
def lab(town: Town, tmp_path: Path) -> Lab:
    return Lab(tmp_path, town.as_("amal"))


def test_another_tenant_sees_reads_and_stops_nothing(town: Town, lab: Lab) -> None:
    job = lab.done(lab.submit("print('ours')", project="fraud"))
    sara = town.as_("sara")
    assert sara.jobs.list().jobs == ()
    for act in (sara.jobs.show, sara.jobs.logs, sara.jobs.cancel, sara.jobs.why, sara.jobs.retry):
        assert isinstance(refusal(lambda act=act: act(job.ref)), NotFound)
    assert [one.name for one in sara.queues.list()] == ["root", "root/default"]
    assert sara.clusters.list()[0].address == "process:"
    assert "bank" not in str(sara.clusters.list())


def test_who_made_a_job_give_way_is_named_to_those_who_may_see_it(town: Town, lab: Lab, tmp_path: Path) -> None:
    town.as_("admin").clusters.change("local", {"address": "process:?nodes=1&cpus=1000&memory=1024"})
    words = {"cpus": 1, "band": "low", "checkpoint": "every=1s,save=1s,restart=1s"}
    mine = lab.submit("import time; time.sleep(600)", project="fraud", **words)
    lab.until(mine, lambda job: job.state == "running")
    theirs = Lab(tmp_path, town.as_("sara")).submit("print(1)", "urgent", project="ward", cpus=1)
    gave = lab.until(mine, lambda job: bool(job.attempts) and bool(job.attempts[0].outcome))
    assert gave.attempts[0].outcome.startswith("evicted: for another team's job")
    assert theirs.ref.name not in str(gave)


def test_only_the_house_changes_clusters_and_queues(town: Town) -> None:
    ola = town.as_("ola")
    for act in (
        lambda: ola.clusters.add("mine", "process:"),
        lambda: ola.clusters.drain("local/x"),
        lambda: ola.queues.add("root/mine"),
        lambda: ola.queues.replace({}),
        lambda: town.as_("amal").clusters.check("local"),
    ):
        assert isinstance(refusal(act), Denied)


def test_a_secret_reaches_the_process_and_no_record(town: Town, lab: Lab) -> None:
    town.as_("sami").secrets.put("secret:fraud/db", SECRET)
    town.as_("sami").secrets.grant("secret:fraud/db", ("project:fraud",))
    text = "import os, hashlib; print(hashlib.sha256(os.environ['DB'].encode()).hexdigest())"
    job = lab.done(lab.submit(text, project="fraud", secret={"DB": "secret:fraud/db"}))
    assert job.state == "succeeded", job.note
    assert lab.lines(job)[0].startswith("fbd") or len(lab.lines(job)[0]) == 64
    assert job.spec.secrets["DB"] == "secret://bank/ae-dubai/fraud/db#1"
    assert SECRET not in str(lab.show(job))
    assert all(SECRET not in str(event) for event in town.events())
    assert [event.verb for event in town.events(verb="secrets.resolve")] == ["secrets.resolve"]
    folder = Path(town.house.settings.home) / "attempts"
    assert all(SECRET.encode() not in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_who_may_not_see_a_secret_may_not_use_it(town: Town, tmp_path: Path) -> None:
    town.as_("sami").secrets.put("secret:fraud/db", SECRET)
    steward = Lab(tmp_path, town.as_("salem"))
    error = refusal(lambda: steward.submit("print(1)", project="fraud", secret={"DB": "secret:fraud/db"}))
    assert isinstance(error, NotFound | Denied)
    other = Lab(tmp_path, town.as_("sara"))
    words = {"DB": "secret://bank/ae-dubai/fraud/db#1"}
    assert isinstance(refusal(lambda: other.submit("print(1)", project="fraud", secret=words)), Invalid)


def test_an_attempt_tells_of_itself_only(town: Town, lab: Lab) -> None:
    jobs = [lab.submit("import time; time.sleep(600)", name, project="fraud") for name in ("one", "two")]
    one, two = (lab.until(job, lambda job: job.state == "running") for job in jobs)
    staging = town.house.desks["jobs"].staging
    with town.house.ledger.read(town.house.system()) as tx:
        record = tx.need(one.ref, "bank")
    actor = staging.actor(town.house.system(), record, "ae-dubai")
    token = town.house.workloads.issue(to_workload(actor), town.house.system().now(), 600)
    here = LocalClient(town.house, town.house.authenticate(token))
    told = here.jobs.tell(
        one.attempts[0].id,
        0,
        ({"kind": "checkpoint", "step": 7, "at": 1.0}, {"kind": "metric", "key": "x", "value": "nan"}),
    )
    assert (told.taken, told.stop) == (2, False)
    assert town.house.authenticate(told.token).run == actor.run
    assert isinstance(refusal(lambda: here.jobs.tell(two.attempts[0].id, 0, ())), NotFound)
    assert isinstance(refusal(lambda: lab.here.jobs.tell(one.attempts[0].id, 0, ())), Denied)
    assert isinstance(refusal(lambda: here.people.add("eve", ("operator",))), Denied)
    town.as_("fatima").people.revoke_run(actor.run)
    assert isinstance(refusal(lambda: town.house.authenticate(told.token)), Unauthenticated)
    for job in jobs:
        lab.here.jobs.cancel(job.ref)
        lab.done(job)


def test_rights_taken_away_before_it_starts_are_gone_when_it_does(town: Town, lab: Lab) -> None:
    gate = lab.submit("import time; time.sleep(600)", "gate", project="fraud")
    data = lab.home / "data"
    data.mkdir()
    (data / "x").write_text("1")
    lab.here.catalog.publish("dataset:fraud/tx", str(data))
    job = lab.submit("print(1)", "late", project="fraud", inputs={"data": "dataset:fraud/tx"}, after=(gate.ref,))
    town.as_("fatima").people.change("amal", roles=("approver",))
    with town.house.ledger.read(town.house.system()) as tx:
        record = tx.need(job.ref, "bank")
    actor = town.house.desks["jobs"].staging.actor(town.house.system(), record, "ae-dubai")
    assert actor.roles == frozenset()
    mona = town.as_("mona")
    mona.jobs.cancel(gate.ref)
    until(lambda: mona.jobs.show(job.ref).state, lambda state: state == "cancelled")


def test_data_that_may_not_leave_keeps_its_job_at_home(town: Town, lab: Lab) -> None:
    admin = town.as_("admin")
    admin.clusters.add(
        "abroad", "process:?nodes=1&cpus=64000&memory=64000", "eu-west", {"folder": str(lab.home / "eu")}
    )
    data = lab.home / "data"
    data.mkdir()
    (data / "x").write_text("1")
    lab.here.catalog.publish("dataset:fraud/tx", str(data), label="AE-PDPL,sensitive,purpose=fraud")
    job = lab.submit("print(1)", project="fraud", inputs={"data": "dataset:fraud/tx"})
    assert job.zones == ("ae-dubai",)
    done = lab.done(job)
    assert (done.state, done.attempts[0].cluster) == ("succeeded", "local")
    error = refusal(
        lambda: lab.submit("print(1)", "b", project="fraud", inputs={"data": "dataset:fraud/tx"}, cluster="abroad")
    )
    assert isinstance(error, Denied)
    assert "AE-PDPL" in str(error)


def test_whoever_let_a_run_work_has_no_second_voice_about_what_it_made(town: Town, lab: Lab) -> None:
    text = "import os, pathlib; pathlib.Path(os.environ['FALAJ_OUTPUT_MODEL'], 'm.json').write_text('{}')"
    done = lab.done(lab.submit(text, project="fraud", outputs={"model": "model:fraud/m"}))
    made = lab.here.catalog.show(done.outputs["model"])
    assert made.author == f"run.{done.run.name}"
    asked = town.as_("mona").approvals.ask("models.promote", f"sha256:{'0' * 64}", "good", about=made.ref)
    with town.house.ledger.read(town.house.context(town.actor("mona"))) as tx:
        assert {"mona", made.author, "amal"} <= set(tx.need(asked.ref.bare).body["barred"])
