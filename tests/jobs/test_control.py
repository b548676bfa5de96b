"""Who operates jobs: cancel, hold, release and requeue by name and by selection, and no look at what they work on."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.jobs.control import JobRow, JobSelector
from falaj.jobs.records import JobSpec
from tests.jobs.lab import Lab
from tests.town import LABEL, Town, refusal

SLEEPS = "import time; time.sleep(600)"
NUMBERS = count(1)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("control") / "town")
    town.as_("admin").clusters.change("local", {"tenants": "bank,clinic", "address": "process:?nodes=1&cpus=1000"})
    yield town
    town.close()


@pytest.fixture
def lab(town: Town, tmp_path: Path) -> Iterator[Lab]:
    yield Lab(tmp_path, town.as_("amal"))
    for tenant in ("bank/*", "clinic/*"):
        town.as_("admin").jobs.control("cancel", JobSelector(project=tenant))


def add(town: Town, name: str, person: str = "amal") -> Any:
    """A waiting job; names are used once, so each gets a number."""
    return town.as_(person).jobs.add(f"job:{name}-{next(NUMBERS)}", JobSpec(("sleep", "600")))


def name_of(row: JobRow) -> str:
    return row.ref.name.partition("-")[0]


def test_tenants_operator_operates_jobs_and_sees_no_data(town: Town, lab: Lab) -> None:
    data = lab.home / "data"
    data.mkdir()
    (data / "rows.csv").write_text("1")
    lab.here.catalog.publish("dataset:fraud/secretive", str(data), label=LABEL)
    ola, inputs = town.as_("ola"), {"data": "dataset:fraud/secretive"}
    job = lab.submit("print(4711)", "labelled", project="fraud", inputs=inputs)
    shown = ola.jobs.hold(job.ref, "maintenance")
    assert (shown.state, "4711" in str(shown)) == ("held", False)
    assert "labelled.py" not in str(shown.spec.command)
    why = lab.here.jobs.why(job.ref)
    assert (why.text, why.commands) == ("held by ola: maintenance", (f"falaj jobs release {job.ref}",))
    assert isinstance(refusal(lambda: ola.jobs.logs(job.ref)), Denied)
    assert isinstance(refusal(lambda: ola.jobs.change(job.ref, cpus=2)), Denied)
    assert isinstance(refusal(lambda: ola.jobs.add("job:fraud/mine", JobSpec(("true",)))), Denied)
    assert ola.jobs.release(job.ref).state == "waiting"
    assert ola.jobs.cancel(job.ref, "runaway").state == "cancelled"


@pytest.mark.parametrize("person", ["badr", "omar", "fatima", "dana"])
def test_whoever_only_looks_or_governs_stops_nothing(town: Town, lab: Lab, person: str) -> None:
    job = add(town, "fraud/mine")
    for act in ("hold", "cancel", "requeue", "release"):
        assert isinstance(refusal(lambda act=act: getattr(town.as_(person).jobs, act)(job.ref)), Denied)
    where = JobSelector(project="fraud")
    assert isinstance(refusal(lambda: town.as_(person).jobs.control("cancel", where)), Denied)


def test_actions_that_do_not_fit_the_state_say_what_does(town: Town, lab: Lab) -> None:
    jobs, job = town.as_("ola").jobs, add(town, "fraud/waits")
    assert "is not held by a person" in str(refusal(lambda: jobs.release(job.ref)))
    assert "does not run" in str(refusal(lambda: jobs.requeue(job.ref)))
    jobs.hold(job.ref)
    assert "already" in str(refusal(lambda: jobs.hold(job.ref)))
    jobs.cancel(job.ref)
    assert isinstance(refusal(lambda: jobs.hold(job.ref)), Conflict)


def test_selection_of_the_platforms_operator_reaches_every_tenant_by_name_only(town: Town, lab: Lab) -> None:
    first, second = add(town, "fraud/first").ref, add(town, "risk/second", "mona").ref
    third = add(town, "ward/third", "sara").ref
    admin = town.as_("admin").jobs
    shown = admin.overview()
    assert {(row.tenant, name_of(row), row.person) for row in shown.jobs} == {
        ("bank", "first", "amal"), ("bank", "second", "mona"), ("clinic", "third", "sara"),
    }  # fmt: skip
    assert "sleep" not in str(shown)
    assert isinstance(refusal(lambda: admin.show(third)), NotFound)
    planned = admin.control("hold", JobSelector(project="bank/*", state="waiting"), "drain", True)
    assert ([row.outcome for row in planned.jobs], planned.done) == (["would hold", "would hold"], False)
    assert {row.state for row in admin.overview().jobs} == {"waiting"}
    done = admin.control("hold", JobSelector(project="bank/*", state="waiting"), "drain")
    assert ([row.outcome for row in done.jobs], done.done) == (["done", "done"], True)
    assert {name_of(row): row.state for row in admin.overview().jobs} == {
        "first": "held", "second": "held", "third": "waiting",
    }  # fmt: skip
    assert town.as_("amal").jobs.show(first).note == "held by admin: drain"
    (event, _) = town.events(verb="jobs.hold")[-2:]
    assert (event.tenant, event.body["operator"]) == ("bank", "house/admin")
    assert [row.outcome for row in admin.control("release", JobSelector(person="mona")).jobs] == ["done"]
    assert town.as_("mona").jobs.show(second).state == "waiting"


def test_selection_of_others_stays_in_their_tenant_and_projects(town: Town, lab: Lab) -> None:
    add(town, "fraud/first")
    third = add(town, "ward/third", "sara").ref
    assert {name_of(row) for row in town.as_("ola").jobs.overview().jobs} == {"first"}
    where = JobSelector(project="clinic/*")
    assert isinstance(refusal(lambda: town.as_("ola").jobs.control("cancel", where)), Invalid)
    assert [name_of(row) for row in town.as_("ola").jobs.control("cancel", JobSelector(state="waiting")).jobs] == [
        "first"
    ]
    assert town.as_("sara").jobs.show(third).state == "waiting"


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (JobSelector(queue="root"), {"first", "second"}),
        (JobSelector(queue="root/defaul"), set()),
        (JobSelector(person="mona"), {"second"}),
        (JobSelector(project="fraud"), {"first"}),
        (JobSelector(older="1h"), set()),
        (JobSelector(state="running"), set()),
        (JobSelector(state="waiting", person="mona", project="fraud"), set()),
    ],
)
def test_conditions_of_a_selection(town: Town, lab: Lab, where: JobSelector, names: set[str]) -> None:
    add(town, "fraud/first")
    add(town, "risk/second", "mona")
    assert {name_of(row) for row in town.as_("ola").jobs.overview(where).jobs} == names


def test_bulk_shows_what_it_would_hit_and_does_it_when_told_so(town: Town, lab: Lab) -> None:
    job, jobs = add(town, "fraud/first"), town.as_("ola").jobs
    assert [name_of(row) for row in jobs.bulk("show", person="amal", state="waiting").jobs] == ["first"]
    assert [row.outcome for row in jobs.bulk("cancel", person="amal").jobs] == ["would cancel"]
    assert lab.show(job).state == "waiting"
    assert [row.outcome for row in jobs.bulk("cancel", person="amal", yes=True).jobs] == ["done"]
    assert lab.show(job).state == "cancelled"
    assert isinstance(refusal(lambda: jobs.bulk("show", person="amal", yes=True)), Invalid)


def test_empty_selection_hits_nothing(town: Town, lab: Lab) -> None:
    assert "the selection is empty" in str(refusal(lambda: town.as_("admin").jobs.control("cancel", JobSelector())))


def test_running_job_is_requeued_and_held_and_goes_on(town: Town, lab: Lab) -> None:
    ola = town.as_("ola").jobs
    with town.house.working():
        job = lab.submit(SLEEPS, "requeued", project="fraud", cpus=0.5)
        lab.until(job, lambda view: view.state == "running")
        ola.requeue(job.ref, "its node is repaired")
        again = lab.until(job, lambda view: len(view.attempts) == 2 and view.state == "running")
        assert again.attempts[0].outcome.startswith("requeued")
        ola.hold(job.ref, "not now")
        held = lab.until(job, lambda view: view.state == "held")
        assert (held.note, len(held.attempts), held.evictions) == ("held by ola: not now", 2, 0)
        later = lab.submit("print('later')", "after-hold", project="fraud")
        assert lab.done(later).state == "succeeded"
        assert lab.show(job).state == "held"
        ola.release(job.ref)
        lab.until(job, lambda view: len(view.attempts) == 3 and view.state == "running")
        ola.cancel(job.ref)
        assert lab.done(job).state == "cancelled"


@pytest.mark.parametrize(("action", "attempts"), [("hold", 1), ("drain", 2)])
def test_stopped_queue_starts_nothing_until_it_is_released(town: Town, lab: Lab, action: str, attempts: int) -> None:
    queues = town.as_("admin").queues
    with town.house.working():
        runs = lab.submit(SLEEPS, f"runs-{action}", project="fraud", cpus=0.5)
        lab.until(runs, lambda view: view.state == "running")
        shown = getattr(queues, action)("root", "the hall is moved")
        assert (shown.stop, shown.stop_reason) == (action, "the hall is moved")
        waits = lab.submit("print('done')", f"waits-{action}", project="fraud")
        held = lab.until(waits, lambda view: view.state == "held")
        assert held.note == f"the queue root is {'drained' if action == 'drain' else 'held'}: the hall is moved"
        assert lab.here.jobs.why(waits.ref).commands == ("falaj queues release root",)
        lab.until(runs, lambda view: view.state == ("held" if action == "drain" else "running"))
        assert isinstance(refusal(lambda: getattr(town.as_("ola").queues, action)("root")), Denied)
        queues.replace({"root/default": {"projects": ["*"], "weight": 2}})
        assert queues.show("root").stop == action, "a file of queues releases none"
        queues.release("root")
        assert lab.done(waits).state == "succeeded"
        lab.until(runs, lambda view: len(view.attempts) == attempts and view.state == "running")
        lab.here.jobs.cancel(runs.ref)
        lab.done(runs)
    assert "neither held nor drained" in str(refusal(lambda: queues.release("root")))
