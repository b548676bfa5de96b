"""Threat: a job goes on with rights that its submitter has lost. What may not go on is held with the reason shown, a
running attempt is asked to save and is stopped, and both go on once the submitter has the rights again; of people whom
only an identity provider knows, the last sign-in counts, for 30 days."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.context import Actor
from falaj.core.ref import Ref
from falaj.dispatch.standings import SubmitterStandings
from falaj.govern.accounts import make_trust_key
from falaj.govern.sign_ins import MAX_SIGN_IN_AGE_S
from falaj.jobs.records import JobSpec
from falaj.server import LocalClient
from tests.jobs.lab import Lab
from tests.town import Town

SAVING = """
import os, pathlib, time
from falaj import worker
here = worker.attempt()
saved = pathlib.Path(os.environ["FALAJ_CHECKPOINTS"]) / "step"
step, total = map(int, saved.read_text().split()) if saved.exists() else (0, 0)
print("begins at", step, flush=True)
first = not saved.exists()
while step < 100:
    total, step = total + step, step + 1
    here.progress(step, 100)
    if here.asked():
        saved.write_text(f"{step} {total}")
        here.checkpointed(step)
        if here.asked() == "stop":
            here.yield_place()
    time.sleep(0.05 if not first else 0.5)
print("total", total, flush=True)
"""
HASAN = Actor("oidc.hasan", "bank", roles=frozenset({"data-scientist", "approver"}), jurisdiction="AE")


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    prepared = Town(tmp_path / "town")
    prepared.as_("admin").clusters.change("local", {"tenants": "bank", "state": "closed"})
    yield prepared
    prepared.close()


def opened(town: Town) -> None:
    """Let jobs of the bank start."""
    town.as_("admin").clusters.change("local", {"state": "open"})


def held_then_done(town: Town, lab: Lab, job: Any, lift: Callable[[], Any]) -> tuple[Any, Any]:
    """The job as it is held back, and as it ends once the reason is gone."""
    mona = town.as_("mona")
    opened(town)
    with town.house.working():
        # A job that was asked for later runs: whatever may start had its turn.
        later = Lab(lab.home, mona)
        assert later.done(later.submit("print('later')", "later", project="fraud")).state == "succeeded"
        held = mona.jobs.show(job.ref)
        why = mona.jobs.why(job.ref)
        assert (held.state, why.state, why.text) == ("held", "held", held.note)
        lift()
        done = later.done(job)
    return held, done


def test_job_of_a_person_who_lost_their_role_is_held_until_they_have_one_again(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.submit("print('it ran')", project="fraud")
    people = town.as_("fatima").people
    people.change("amal", roles=("approver",))
    held, done = held_then_done(town, lab, job, lambda: people.change("amal", roles=("data-scientist",)))
    assert "amal holds no role any more that may run jobs" in held.note
    assert (done.state, done.attempts[0].number) == ("succeeded", 1)


def test_job_of_a_person_who_lost_the_project_is_held_until_they_have_it_again(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.submit("print('it ran')", project="fraud")
    people = town.as_("fatima").people
    people.change("amal", projects=("risk",))
    held, done = held_then_done(town, lab, job, lambda: people.change("amal", projects=("fraud", "risk")))
    assert held.note == "amal is not in the project fraud any more"
    assert done.state == "succeeded"


def test_job_of_a_suspended_person_is_held_until_they_are_resumed(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.submit("print('it ran')", project="fraud")
    people = town.as_("fatima").people
    people.suspend("amal")
    held, done = held_then_done(town, lab, job, lambda: people.resume("amal"))
    assert held.note == "the account amal is suspended"
    listed = {str(view.ref): view.state for view in town.as_("mona").jobs.list().jobs}
    assert done.state == listed[str(job.ref)] == "succeeded"


def trust_ci(town: Town) -> None:
    """Write the rule as `people trust` does once a second person approved it."""
    rule = {
        "issuer": "https://ci.example",
        "audience": "falaj",
        "subject": "repo:bank/*",
        "zone": town.house.settings.zone,
    }
    with town.house.ledger.write(town.house.context(town.actor("fatima"))) as tx:
        record = tx.put(
            make_trust_key("bank", "ci"), {**rule, "roles": ["ml-engineer"], "projects": ["*"], "makers": []}
        )
        tx.emit("people.trust", record.ref)


def test_running_job_of_a_build_system_stops_when_it_is_trusted_no_more(town: Town, tmp_path: Path) -> None:
    trust_ci(town)
    build = Actor(
        "run.ci.1",
        "bank",
        "workload",
        frozenset({"ml-engineer"}),
        jurisdiction="AE",
        run="ci.1",
        zone=town.house.settings.zone,
        trust="ci",
    )
    lab = Lab(tmp_path, LocalClient(town.house, build, "fraud"))
    opened(town)
    words = {"checkpoint": "every=1s,save=1s,restart=1s", "project": "fraud"}
    with town.house.working():
        job = lab.submit(SAVING, "built", **words)
        lab.here = town.as_("mona")
        lab.until(job, lambda view: view.step >= 2)
        town.as_("fatima").people.distrust("ci")
        held = lab.until(job, lambda view: view.state == "held")
        assert held.note == "the build system ci is trusted no more"
        trust_ci(town)
        assert lab.done(job).state == "succeeded"


def test_jobs_of_a_removed_account_are_cancelled(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    waiting = lab.submit("print('it ran')", "waits", project="fraud", cpus=1000)
    town.as_("fatima").people.remove("amal")
    lab.here = town.as_("mona")
    opened(town)
    with town.house.working():
        done = lab.done(waiting)
    assert (done.state, done.note) == ("cancelled", "the account amal was removed")


@pytest.mark.parametrize("how", ["suspend", "role", "project"])
def test_running_job_saves_and_stops_and_goes_on_from_there(town: Town, tmp_path: Path, how: str) -> None:
    lab, people = Lab(tmp_path, town.as_("amal")), town.as_("fatima").people
    opened(town)
    words = {"checkpoint": "every=1s,save=1s,restart=1s", "project": "fraud"}
    with town.house.working():
        job = lab.submit(SAVING, "saves", **words)
        lab.until(job, lambda view: view.step >= 2)
        lab.here = town.as_("mona")
        change, lift = {
            "suspend": (lambda: people.suspend("amal"), lambda: people.resume("amal")),
            "role": (
                lambda: people.change("amal", roles=("approver",)),
                lambda: people.change("amal", roles=("data-scientist",)),
            ),
            "project": (lambda: people.change("amal", projects=("x",)), lambda: people.change("amal", projects=("*",))),
        }[how]
        change()
        held = lab.until(job, lambda view: view.state == "held")
        assert held.attempts[-1].outcome.startswith("suspended")
        lift()
        done = lab.done(job)
        assert (done.state, len(done.attempts), done.evictions) == ("succeeded", 2, 0)
        began, end = lab.lines(job)[0], lab.lines(job)[-1]
    assert int(began.split()[-1]) >= 2, "it went on where it had saved"
    assert end == "total 4950"


@pytest.mark.parametrize(
    ("roles", "age_s"),
    [(frozenset({"approver"}), 0.0), (frozenset(), 0.0), (HASAN.roles, MAX_SIGN_IN_AGE_S + 1.0)],
    ids=["role removed", "no role", "long ago"],
)
def test_job_of_a_person_of_the_provider_is_held_until_the_next_sign_in(
    town: Town, tmp_path: Path, roles: frozenset[str], age_s: float
) -> None:
    town.house._sign_ins.note(HASAN, time.time() - MAX_SIGN_IN_AGE_S)
    lab = Lab(tmp_path, LocalClient(town.house, HASAN, "fraud"))
    job = lab.submit("print('it ran')", project="fraud")
    signed = Actor(HASAN.id, HASAN.tenant, roles=roles, jurisdiction="AE")
    town.house._sign_ins.note(signed, time.time() - age_s)
    held, done = held_then_done(town, lab, job, lambda: town.house._sign_ins.note(HASAN, time.time() + 1))
    assert "oidc.hasan holds no role any more" in held.note
    assert done.state == "succeeded"


def test_standing_ends_by_itself_when_the_last_sign_in_becomes_too_old(town: Town) -> None:
    """Nobody writes anything when a sign-in becomes too old: the leader has to know when to ask again."""
    town.house._sign_ins.note(HASAN, time.time() - MAX_SIGN_IN_AGE_S + 1000.0)
    client = LocalClient(town.house, HASAN, "fraud")
    client.jobs.add("job:fraud/waits", JobSpec(("true",)))
    ledger, standings = town.house.ledger, SubmitterStandings(town.house.ledger)
    ctx = town.house.system()
    with ledger.read(ctx) as tx:
        record = tx.need(Ref.parse("job:fraud/waits"), "bank")
    assert not standings.update(ctx, record)
    assert not standings.expired(time.time())
    assert standings.expired(time.time() + 1001.0)
