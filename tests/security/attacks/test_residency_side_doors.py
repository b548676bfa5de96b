"""Threat-model row: values of labelled data do not reach a person abroad, or one without `read`, by any other door."""

from collections.abc import Iterator
from typing import Any

import pytest

from falaj.core.errors import Denied, FalajError
from falaj.core.ref import Ref
from falaj.jobs.records import JobView
from tests.jobs.lab import Lab
from tests.people import enroll
from tests.security.attacks.labelled import CANARY, LABEL, SEEING, Bank
from tests.town import refusal


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    bank = Bank(tmp_path_factory.mktemp("bank"))
    with bank.house.working():
        yield bank
    bank.close()


@pytest.fixture(scope="module")
def job(bank: Bank) -> JobView:
    """Bob may not view the data; his job may work on it where it lies."""
    job = bank.run_leaky_job("bob")
    assert job.state == "succeeded", bank.as_("amal").jobs.show(job.ref).note
    return job


@pytest.fixture(scope="module")
def outcomes(bank: Bank, job: JobView) -> dict[str, str]:
    """What the code of that job tried to write through the API, with the token of its attempt."""
    return bank.leak_through(bank.attempt_of(job), job.run)


def values_shown_to(bank: Bank, person: str, job: JobView) -> list[str]:
    platform = bank.as_(person)
    questions: dict[str, Any] = {
        "run": lambda: platform.track.show(job.run),
        "runs": lambda: platform.track.list(project="fraud"),
        "recent": lambda: platform.track.recent(mine=False),
        "table": lambda: platform.track.table(project="fraud"),
        "compare": lambda: platform.track.compare((job.run, bank.plain_run)),
        "artifacts": lambda: platform.track.artifacts(job.run),
        "job": lambda: platform.jobs.show(job.ref),
        "jobs": platform.jobs.list,
        "why": lambda: platform.jobs.why(job.ref),
        "logs": lambda: platform.jobs.logs(job.ref),
        "data": lambda: platform.catalog.show(bank.data),
        "made": lambda: platform.catalog.show(job.outputs["made"]),
        "list": platform.catalog.list,
        "names": platform.catalog.names,
        "model": lambda: platform.catalog.show("model:fraud/plain"),
        "about": lambda: platform.catalog.about("model:fraud/plain"),
        "experiments": platform.track.experiments,
        "plain": lambda: platform.track.show(bank.plain_run),
        "end": lambda: platform.track.end(job.run, status=""),
    }
    shown = []
    for name, ask in questions.items():
        try:
            answer = str(ask())
        except FalajError as error:
            answer = f"{error} {error.hint}"
        if CANARY in answer or "784.784" in answer or "784784" in answer:
            shown.append(name)
    return shown


@pytest.mark.parametrize("person", ["bob", *SEEING])
@pytest.mark.usefixtures("outcomes")
def test_nothing_a_job_writes_reaches_who_may_not_read_its_input(bank: Bank, job: JobView, person: str) -> None:
    assert values_shown_to(bank, person, job) == []


def test_reader_of_the_data_sees_what_the_job_wrote(bank: Bank, job: JobView) -> None:
    assert set(values_shown_to(bank, "amal", job)) >= {"run", "runs", "table", "data", "made", "logs"}


def test_a_job_whose_submitter_may_not_see_its_input_writes_to_runs_alone(outcomes: dict[str, str]) -> None:
    done = {name for name, outcome in outcomes.items() if outcome == "done"}
    assert done == {"log", "title", "attach", "run", "output"}


def test_a_job_whose_submitter_may_read_its_input_makes_new_labelled_things_too(bank: Bank) -> None:
    job = bank.run_leaky_job("amal")
    outcomes = bank.leak_through(bank.attempt_of(job), job.run)
    done = {name for name, outcome in outcomes.items() if outcome == "done"}
    assert done == {"log", "title", "attach", "run", "output", "experiment", "trace", "blob"}
    assert bank.as_("amal").store.show("blob:fraud/named-by-code").label.words == LABEL


def test_a_failed_job_tells_who_may_not_read_its_input_no_reason(bank: Bank) -> None:
    job = bank.run_leaky_job("bob", exit_code=3)
    assert (job.state, job.attempts[-1].code) == ("failed", 3)
    assert job.note.startswith("withheld: needs read on job:fraud/")


def test_statistics_of_columns_are_read_and_not_seen(bank: Bank) -> None:
    for person in ("bob", *SEEING):
        version = bank.as_(person).catalog.show(bank.data)
        assert [column.name for column in version.table.columns] == ["id", "name", "iban"]
        assert {(column.low, column.high, column.mean) for column in version.table.columns} == {("", "", None)}
        assert version.message.startswith(f"withheld: needs read on {bank.data}")
    names = {column.name: column.low for column in bank.as_("amal").catalog.show(bank.data).table.columns}
    assert names["name"] == f"Amal-{CANARY}a"


def test_a_refusal_to_show_values_is_recorded(bank: Bank, job: JobView) -> None:
    refused = refusal(lambda: bank.as_("omar").track.artifacts(job.run))
    assert isinstance(refused, Denied)
    assert refused.message.startswith(f"withheld: needs read on {job.run}")
    event = bank.events(verb="guard.deny")[-1]
    assert (event.actor, event.body["action"]) == ("omar", "track.artifacts")


def test_a_repeated_question_is_judged_anew(bank: Bank) -> None:
    bank.tokens["hind"] = enroll(bank.as_("fatima"), "hind", ("data-scientist",), jurisdiction="AE")
    house, actor = bank.house, bank.actor("hind")
    ctx = house.context(actor, request_id="one-question", purpose="fraud")
    ask = {"name": Ref.parse(bank.data)}
    assert CANARY in str(house.call("catalog", "show", ctx, ask))
    bank.as_("fatima").people.change("hind", roles=("auditor",))
    again = house.context(bank.actor("hind"), request_id="one-question", purpose="fraud")
    assert CANARY not in str(house.call("catalog", "show", again, ask))


def test_the_purpose_of_a_label_counts_for_statistics_too(bank: Bank) -> None:
    version = bank.as_("amal", purpose="marketing").catalog.show(bank.data)
    assert {column.low for column in version.table.columns} == {""}


def test_a_filter_does_not_answer_about_values_it_may_not_show(bank: Bank, job: JobView) -> None:
    amal, bob = bank.as_("amal"), bank.as_("bob")
    word = next(name for name in amal.track.show(job.run).params if CANARY in name)
    for where in (f"params.`{word}` = '{word}'", f"tags.`{word}` LIKE '%'", "metrics.`x` > 0"):
        assert bob.track.list(project="fraud", where=where).runs == ()
    assert job.run in [run.ref for run in amal.track.list(project="fraud", where=f"params.`{word}` = '{word}'").runs]
    assert CANARY not in str(bob.track.table(project="fraud").columns)


def test_writing_a_parameter_again_does_not_tell_what_it_is(bank: Bank) -> None:
    run = bank.as_("amal").track.start("experiment:fraud/plain", inputs={"data": bank.data}, params={"iban": CANARY})
    refusals = [
        refusal(lambda guess=guess: bank.as_("bob").track.log(run.ref, params={"iban": guess}))
        for guess in ("AE00", CANARY)
    ]
    assert refusals[0].message == refusals[1].message
    assert CANARY not in refusals[0].message


def test_a_job_reads_no_labelled_data_that_it_did_not_declare(bank: Bank) -> None:
    lab = Lab(bank.home, bank.as_("bob"))
    attempt = bank.attempt_of(job := lab.submit("print(1)", "undeclared", project="fraud"))
    for act in (
        lambda: attempt.catalog.open(bank.data),
        lambda: attempt.track.use(job.run, inputs=(bank.data,)),
        lambda: attempt.catalog.begin("dataset:fraud/other", inputs={"data": bank.data}),
    ):
        refused = refusal(act)
        assert isinstance(refused, Denied)
        assert "did not declare it as an input" in refused.message
    assert CANARY not in str(attempt.catalog.show(bank.data))
    lab.done(job)


def test_a_role_that_may_not_read_an_input_may_not_run_code_on_it(bank: Bank) -> None:
    bank.as_("fatima").policy.add(
        "no-people", 'forbid (principal, action in Action::"read", resource) when { resource.project == "closed" };'
    )
    data = bank.home / "data"
    bank.as_("amal").catalog.publish("dataset:closed/people", str(data), label=LABEL)
    lab = Lab(bank.home, bank.as_("amal"))
    refused = refusal(lambda: lab.submit("print(1)", "closed", inputs={"data": "dataset:closed/people"}))
    assert isinstance(refused, Denied)
