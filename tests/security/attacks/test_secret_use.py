"""Proves the threat-model row "a job prints a secret that its submitter may not read": only a use grant lets it in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Denied, Invalid, NotFound
from tests.jobs.lab import Lab
from tests.people import enroll
from tests.town import Town, refusal

VALUE = "hunter2-prod"
SECRET = "secret:fraud/db"
PRINT_SECRET = "import os; print('value is', os.environ['DB'])"
USE_SECRET = {"project": "fraud", "secret": {"DB": SECRET}}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("secrets") / "town")
    town.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
    with town.house.working():
        yield town
    town.close()


@pytest.fixture(autouse=True)
def fresh_secret(town: Town) -> Iterator[None]:
    """The security officer's secret, without any grant."""
    town.as_("sami").secrets.put(SECRET, VALUE)
    yield
    town.as_("sami").secrets.delete(SECRET)


@pytest.fixture
def lab(town: Town, tmp_path: Path) -> Lab:
    return Lab(tmp_path, town.as_("amal"))


def test_job_of_who_may_only_see_a_secret_is_refused(town: Town, lab: Lab) -> None:
    assert isinstance(refusal(lambda: town.as_("amal").secrets.reveal(SECRET)), Denied)
    error = refusal(lambda: lab.submit(PRINT_SECRET, **USE_SECRET))
    assert isinstance(error, Denied)
    assert "falaj secrets grant" in error.hint
    pinned = {"DB": "secret://bank/ae-dubai/fraud/db#1"}
    assert isinstance(refusal(lambda: lab.submit(PRINT_SECRET, project="fraud", secret=pinned)), Denied)


@pytest.mark.parametrize("grantee", ["person:amal", "project:fraud", "role:data-scientist"])
def test_job_of_a_grantee_gets_the_value(town: Town, lab: Lab, grantee: str) -> None:
    view = town.as_("sami").secrets.grant(SECRET, (grantee,))
    assert view.use == (grantee,)
    job = lab.done(lab.submit(PRINT_SECRET, f"of-{grantee.partition(':')[0]}", **USE_SECRET))
    assert lab.lines(job) == (f"value is {VALUE}",)


def test_grant_to_another_person_or_project_is_not_ours(town: Town, lab: Lab) -> None:
    town.as_("sami").secrets.grant(SECRET, ("person:mona", "project:credit", "role:ml-engineer"))
    assert isinstance(refusal(lambda: lab.submit(PRINT_SECRET, "not-ours", **USE_SECRET)), Denied)


def test_withdrawn_grant_stops_the_next_start(town: Town, lab: Lab) -> None:
    """The job is admitted while its node takes no jobs; the grant is gone when it starts."""
    sami, admin = town.as_("sami"), town.as_("admin")
    (node,) = (view.node for view in admin.clusters.nodes())
    sami.secrets.grant(SECRET, ("person:amal",))
    admin.clusters.drain(node)
    job = lab.submit(PRINT_SECRET, "late", **USE_SECRET)
    sami.secrets.withdraw(SECRET, ("person:amal",))
    admin.clusters.open(node)
    ended = lab.done(job)
    assert ended.state == "failed"
    assert "not granted" in str(ended)
    assert f"run.{job.run.name}" not in [event.actor for event in town.events(verb="secrets.resolve")]


def test_who_may_write_but_not_read_cannot_grant(town: Town) -> None:
    """An engineer may put a new version; that opens neither the grants nor the versions before it."""
    mona = town.as_("mona")
    mona.secrets.put(SECRET, "another value")
    assert isinstance(refusal(lambda: mona.secrets.grant(SECRET, ("person:mona",))), Denied)
    assert isinstance(refusal(lambda: mona.secrets.use(SECRET, "fraud")), Denied)


def test_creator_uses_and_grants_the_own_secret(town: Town) -> None:
    mona = town.as_("mona")
    mona.secrets.put("secret:fraud/own", "mine")
    assert mona.secrets.use("secret:fraud/own").reference.endswith("/own#1")
    mona.secrets.grant("secret:fraud/own", ("person:amal",))
    assert town.as_("amal").secrets.use("secret:fraud/own").use == ("person:amal",)
    assert isinstance(refusal(lambda: town.as_("amal").secrets.grant("secret:fraud/own", ("person:omar",))), Denied)


def test_hook_of_who_may_only_see_the_secret_is_refused(town: Town) -> None:
    """A webhook signed with a secret would be a way to have messages signed in another's name."""
    amal = town.as_("amal")
    assert isinstance(refusal(lambda: amal.flows.listen("knock:fraud/ci", secret=SECRET)), Denied)
    error = refusal(lambda: amal.flows.hook("hook:fraud/ci", "https://example.com/x", ("jobs.*",), secret=SECRET))
    assert isinstance(error, Denied), error


def test_grantees_are_checked_and_recorded(town: Town) -> None:
    sami = town.as_("sami")
    for bad in ("amal", "person:", "role:king", "tenant:clinic", "person:a b"):
        assert isinstance(refusal(lambda bad=bad: sami.secrets.grant(SECRET, (bad,))), Invalid), bad
    assert isinstance(refusal(lambda: sami.secrets.withdraw(SECRET, ("person:amal",))), NotFound)
    sami.secrets.grant(SECRET, ("person:amal",))
    sami.secrets.withdraw(SECRET, ("person:amal",))
    events = [(e.verb, e.actor, e.body["to"]) for e in town.events() if e.verb in ("secrets.grant", "secrets.withdraw")]
    assert events[-2:] == [("secrets.grant", "sami", "person:amal"), ("secrets.withdraw", "sami", "person:amal")]


def test_operator_cannot_send_a_secret_to_a_cluster_of_their_own(town: Town) -> None:
    """An executor presents the secret at the cluster's address, which may be the operator's own server."""
    admin = town.as_("admin")
    for name, role in (("oya", "operator"), ("suhail", "security-officer")):
        town.tokens[name] = enroll(admin, name, (role,))
    town.as_("suhail").secrets.put("secret:ops/ray", VALUE)
    more = {"token": "secret://house/ae-dubai/ops/ray"}
    error = refusal(lambda: town.as_("oya").clusters.add("mine", "ray:https://127.0.0.1:1", more=more))
    assert isinstance(error, Denied)
    town.as_("suhail").secrets.grant("secret:ops/ray", ("person:oya",))
    assert town.as_("oya").clusters.add("mine", "ray:https://127.0.0.1:1", more=more).options == more
    town.as_("suhail").secrets.withdraw("secret:ops/ray", ("person:oya",))
    error = refusal(lambda: town.as_("oya").clusters.change("mine", {"address": "ray:https://127.0.0.1:2"}))
    assert isinstance(error, Denied)
