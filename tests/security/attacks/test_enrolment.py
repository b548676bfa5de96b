"""Threat-model row "an administrator acts as another person": only the person who redeems an enrolment code holds
the person's token, every event names who made the credential, and four eyes need two people of whom neither made the
credential of the other. Runs against a real server."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import falaj
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, Unauthenticated
from tests.people import approve_as_officer, confirm_roles, enroll, enroll_tenant, redeem
from tests.replica import FALAJ, Replica
from tests.servers.process import wait_until
from tests.town import refusal

ROWS = b"id,name,iban\n1,Amal,AE070331234567890123456\n"
BLOB, LABELLED_BLOB = "blob:fraud/customers", "blob:fraud/patients"


class Bank:
    """A server with one tenant: fatima administers it and enrolled all others."""

    def __init__(self, home: Path) -> None:
        self.server = Replica(home, {"FALAJ_HOSTS": "localhost"})
        self.tokens = {"fatima": enroll_tenant(self.server.as_(), "bank", "fatima")}
        team = {
            "amal": "data-scientist", "mona": "ml-engineer", "salem": "data-steward", "badr": "approver",
            "dana": "dpo", "sami": "security-officer", "omar": "auditor",
        }  # fmt: skip
        for name, role in team.items():
            self.tokens[name] = enroll(self.as_("fatima"), name, (role,), jurisdiction="AE")
        self.as_("amal").store.put(BLOB, ROWS, label="open")
        self.as_("amal").track.create("experiment:fraud/laundering")
        self.as_("amal").store.put(LABELLED_BLOB, ROWS, label="sensitive")

    def as_(self, name: str) -> Any:
        return self.server.as_(self.tokens[name])

    def post(self, path: str, body: dict[str, Any], token: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.post(f"{self.server.url}{path}", json=body, headers=headers, trust_env=False)

    def redeem(self, code: str) -> tuple[Any, Any]:
        """What whoever has the code gets: the issued token, and the platform as its holder sees it."""
        with falaj.connect(self.server.url) as stranger:
            issued = stranger.people.enroll(code)
        return issued, self.server.as_(issued.token)

    def events(self, **where: Any) -> list[Any]:
        return list(self.as_("omar").audit.log(limit=500, **where).entries)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    ground = Bank(tmp_path_factory.mktemp("bank") / "home")
    with ground.server:
        yield ground


def test_administrator_gets_no_token_of_another_person(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    assert isinstance(refusal(lambda: fatima.store.get(BLOB).read()), (Denied, NotFound))
    refused = refusal(lambda: fatima.people.token("amal"))
    assert isinstance(refused, Denied)
    assert "only they can get a token" in refused.message
    added = bank.post("/v1/people/add", {"name": "noor", "roles": ["data-scientist"]}, bank.tokens["fatima"])
    assert added.status_code == 200
    assert "fj_" not in added.text


def test_reset_alone_gives_the_administrator_no_code(bank: Bank) -> None:
    waiting = bank.as_("fatima").people.reset("amal", "lost laptop")
    assert (waiting.state, waiting.code) == ("waiting", "")
    assert bank.as_("fatima").people.reset("amal", "lost laptop").code == ""
    for name in ("fatima", "badr", "dana", "sami"):  # fatima asks, and made the credentials of the others
        refused = refusal(lambda name=name: bank.as_(name).approvals.give(waiting.approval))
        assert isinstance(refused, Denied), name
    assert bank.as_("amal").people.whoami().id == "amal"


def test_reset_by_two_people_ends_every_older_token(bank: Bank) -> None:
    enroll(bank.as_("fatima"), "hind", ("data-scientist",))
    old = redeem(bank.as_("fatima"), bank.as_("fatima").people.add("huda", ("data-scientist",)))
    waiting = bank.as_("sami").people.reset("huda", "lost laptop")
    assert isinstance(refusal(lambda: bank.as_("sami").approvals.give(waiting.approval)), Denied)
    bank.as_("badr").approvals.give(waiting.approval)
    ready = bank.as_("sami").people.reset("huda", "lost laptop")
    assert ready.state == "ready"
    assert bank.as_("sami").people.reset("huda", "again").state == "waiting", "one approval made two codes"
    assert bank.server.as_(old).people.whoami().id == "huda"
    fresh = redeem(bank.as_("sami"), ready)
    assert isinstance(refusal(bank.server.as_(old).people.whoami), Unauthenticated)
    assert bank.server.as_(fresh).people.whoami().credential_by == "bank/sami"
    event = bank.events(verb="people.enroll", about="person:people/huda")[0]
    assert event.body["code_by"] == "bank/sami"
    assert int(event.body["ended_tokens"]) >= 1


def test_second_redemption_of_a_code_is_refused_and_recorded(bank: Bank) -> None:
    code = bank.as_("fatima").people.add("rami", ("data-scientist",)).code
    first = bank.post("/v1/people/enroll", {"code": code})
    assert first.status_code == 200
    second = bank.post("/v1/people/enroll", {"code": code})
    assert second.status_code == 409
    assert "redeemed already" in second.text
    assert "127.0.0.1" in second.text
    assert "fj_" not in second.text
    again = bank.events(verb="people.enroll-again")[0]
    assert (again.body["person"], again.body["code_by"], again.body["peer"]) == ("rami", "bank/fatima", "127.0.0.1")
    assert bank.server.as_(first.json()["token"]).people.whoami().id == "rami"


@pytest.mark.parametrize(
    "change", [lambda c: c[:-1] + ("A" if c[-1] != "A" else "B"), lambda c: "fje_" + c[4:20], str.upper]
)
def test_code_that_differs_anywhere_opens_nothing(bank: Bank, change: Any) -> None:
    enrolment = bank.as_("fatima").people.reset("noor")  # the first code is not redeemed, so one person suffices
    assert enrolment.state == "ready"
    assert bank.post("/v1/people/enroll", {"code": change(enrolment.code)}).status_code == 401


def test_new_code_ends_the_older_one(bank: Bank) -> None:
    older = bank.as_("fatima").people.add("lubna", ("data-scientist",)).code
    newer = bank.as_("fatima").people.reset("lubna").code
    assert bank.post("/v1/people/enroll", {"code": older}).status_code == 401
    assert bank.post("/v1/people/enroll", {"code": newer}).status_code == 200


def test_code_of_a_suspended_account_opens_nothing(bank: Bank) -> None:
    code = bank.as_("fatima").people.add("tariq", ("data-scientist",)).code
    bank.as_("fatima").people.suspend("tariq")
    assert bank.post("/v1/people/enroll", {"code": code}).status_code == 401


def test_request_with_another_credential_redeems_no_code(bank: Bank) -> None:
    code = bank.as_("fatima").people.add("zain", ("data-scientist",)).code
    assert bank.post("/v1/people/enroll", {"code": code}, bank.tokens["fatima"]).status_code == 403
    assert bank.post("/v1/people/enroll", {"code": code}).status_code == 200


def test_command_line_redeems_a_code_and_keeps_the_token(bank: Bank, tmp_path: Path) -> None:
    code = bank.as_("fatima").people.add("kamal", ("data-scientist",)).code
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "FALAJ_TOKEN": "", "FALAJ_URL": ""}
    done = subprocess.run([*FALAJ, "login", bank.server.url, "--code", "-"], input=f"{code}\n", env=env, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "falaj" / "credentials.json").read_text())["logins"][0]
    assert bank.server.as_(kept["token"]).people.whoami().id == "kamal"


def test_browser_redeems_a_code_on_the_sign_in_page(bank: Bank) -> None:
    code = bank.as_("fatima").people.add("dalal", ("data-scientist",)).code
    form, own = {"token": code, "back": "/console"}, {"origin": bank.server.url}
    with httpx.Client(base_url=bank.server.url, trust_env=False, headers=own) as browser:
        shown = browser.post("/console/sign-in", data=form)
        assert shown.status_code == 200
        assert "fj_" in shown.text
        assert browser.get("/console/people/me").status_code == 200
        refused = browser.post("/console/sign-in", data=form)  # signed in already
        assert refused.status_code == 403
    with httpx.Client(base_url=bank.server.url, trust_env=False, headers=own) as thief:
        second = thief.post("/console/sign-in", data=form)
        assert second.status_code == 409
        assert "redeemed already" in second.text


def test_every_event_of_a_credential_names_its_maker(bank: Bank) -> None:
    amal = bank.as_("amal")
    amal.store.get(BLOB).read()
    amal.people.whoami()
    renewed = bank.server.as_(amal.people.renew().token)
    renewed.store.get(BLOB).read()
    assert renewed.people.whoami().credential_by == "bank/fatima"
    mine = bank.events(actor="amal")
    assert {event.verb for event in mine} >= {"store.get", "people.whoami", "people.token"}
    assert {event.body.get("credential_by") for event in mine} == {"bank/fatima"}
    assert {event.body.get("credential_by") for event in bank.events(actor="fatima")} == {"house/admin"}


def test_requester_passes_no_approval_by_accounts_of_own_making(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    direct = bank.server.as_(enroll(fatima, "sock-approver", ("approver",)))
    ghost = bank.server.as_(enroll(fatima, "sock-admin", ("tenant-admin",)))
    through = bank.server.as_(enroll(ghost, "sock-of-sock", ("approver",)))
    approval = fatima.approvals.ask("catalog.promote", f"sha256:{'1' * 64}", "a test", needs=1)
    for voter in (direct, through):
        refused = refusal(lambda voter=voter: voter.approvals.give(str(approval.ref)))
        assert isinstance(refused, Denied)
        assert "credential was made by the person who asks" in refused.message
        assert "have another person ask" in refused.hint
    assert bank.as_("omar").approvals.show(str(approval.ref)).standing.state == "waiting"


def test_maker_and_made_count_once(bank: Bank) -> None:
    both = bank.server.as_(enroll(bank.as_("fatima"), "chief", ("tenant-admin", "approver")))
    junior = bank.server.as_(enroll(both, "junior", ("approver",)))
    approval = bank.as_("mona").approvals.ask("catalog.promote", f"sha256:{'2' * 64}", "a test", needs=2)
    junior.approvals.give(str(approval.ref))
    assert isinstance(refusal(lambda: both.approvals.give(str(approval.ref))), Denied)
    assert bank.as_("badr").approvals.give(str(approval.ref)).standing.state == "granted"
    # The maker of the requester's credential may not approve the request either.
    own = bank.server.as_(enroll(both, "puppet", ("data-scientist",)))
    approval = own.approvals.ask("catalog.promote", f"sha256:{'3' * 64}", "a test", needs=1)
    assert isinstance(refusal(lambda: both.approvals.give(str(approval.ref))), Denied)


def test_service_account_belongs_to_projects_and_approves_nothing(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    assert isinstance(refusal(lambda: fatima.people.add("robot", ("data-scientist",), service=True)), Invalid)
    for role in ("approver", "dpo", "security-officer", "tenant-admin"):
        act = lambda role=role: fatima.people.add("robot", (role,), service=True, projects=("fraud",))  # noqa: E731
        assert isinstance(refusal(act), Invalid), role


def test_administrator_makes_no_token_of_a_service_account_that_reads_data(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    added = fatima.people.add("loader", ("data-scientist",), service=True, projects=("fraud",), jurisdiction="AE")
    assert (added.state, added.code) == ("service", "")
    refused = refusal(lambda: fatima.people.token("loader"))
    assert isinstance(refused, Denied)
    assert "rights that you do not have" in refused.message
    assert isinstance(refusal(lambda: bank.as_("badr").people.token("loader")), Denied)
    token = bank.as_("amal").people.token("loader").token
    assert bank.server.as_(token).store.get(BLOB).read() == ROWS
    assert bank.server.as_(token).people.whoami().credential_by == "bank/amal"
    assert isinstance(refusal(lambda: bank.server.as_(token).people.token("loader")), Denied)


def test_role_added_later_does_not_widen_a_token_made_before(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    fatima.people.add("watcher", ("auditor",), service=True, projects=("metrics",))
    watcher = bank.server.as_(fatima.people.token("watcher").token)
    fatima.people.change("watcher", roles=("data-scientist", "auditor"), projects=("fraud", "metrics"))
    assert watcher.people.whoami().roles == ("auditor",)
    assert watcher.people.whoami().projects == ("metrics",)
    assert isinstance(refusal(lambda: watcher.store.get(BLOB).read()), (Denied, NotFound))


def test_account_cannot_claim_to_be_the_owner_of_the_folder(bank: Bank) -> None:
    act = lambda: bank.as_("fatima").people.add("root", ("approver",), subject="os:0")  # noqa: E731
    assert isinstance(refusal(act), Invalid)


def test_taken_name_cannot_be_enrolled_twice(bank: Bank) -> None:
    assert isinstance(refusal(lambda: bank.as_("fatima").people.add("amal", ("data-scientist",))), Conflict)


def test_administrator_gets_no_code_for_a_person_of_the_identity_provider(bank: Bank) -> None:
    """Suspending such a person leaves a record that is not enrolled; a code for it would make a token in their name."""
    fatima = bank.as_("fatima")
    fatima.people.suspend("oidc.layla")
    fatima.people.change("oidc.layla", roles=("data-scientist",), jurisdiction="AE")
    refused = refusal(lambda: fatima.people.reset("oidc.layla"))
    assert isinstance(refused, Denied)
    assert "identity provider" in refused.message
    fatima.people.resume("oidc.layla")
    for act in (fatima.people.reset, lambda name: fatima.people.change(name, roles=("data-scientist",))):
        assert isinstance(refusal(lambda act=act: act("oidc.layla")), Denied | NotFound)


def test_administrator_cannot_make_a_credential_in_the_name_of_another_maker(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    act = lambda: fatima.people.add("mask", ("tenant-admin",), subject="bank/sami")  # noqa: E731
    assert isinstance(refusal(act), Invalid)
    # A subject of the provider that was not proven counts in approvals, and is not who made a credential.
    masked = bank.server.as_(enroll(fatima, "mask", ("tenant-admin",), subject="https://login.example#sami"))
    enrolled = bank.server.as_(enroll(masked, "made-by-mask", ("data-scientist",)))
    assert enrolled.people.whoami().credential_by == "bank/mask"


def test_invented_people_pass_no_approval(bank: Bank) -> None:
    """An administrator invents one person who asks and two who approve, and redeems all their codes."""
    fatima = bank.as_("fatima")
    asker = bank.server.as_(enroll(fatima, "invented-steward", ("data-steward",)))
    approval = asker.approvals.ask("catalog.promote", f"sha256:{'4' * 64}", "a test", needs=2)
    for name, role in (("invented-approver", "approver"), ("invented-dpo", "dpo")):
        with falaj.connect(bank.server.url) as stranger:
            issued = stranger.people.enroll(fatima.people.add(name, (role,)).code)
        invented = bank.server.as_(issued.token)
        assert invented.people.whoami().roles == ()
        refused = refusal(lambda voter=invented: voter.approvals.give(str(approval.ref)))
        assert isinstance(refused, Denied | NotFound)
        # Neither the maker, nor the account itself, nor another account of the maker confirms it.
        for voter in (fatima, invented, asker):
            act = lambda voter=voter, ref=issued.confirmation: voter.approvals.give(ref)  # noqa: E731
            assert isinstance(refusal(act), Denied | NotFound)
    assert bank.as_("omar").approvals.show(str(approval.ref)).standing.state == "waiting"


def assert_reads_no_labelled_data(reader: Any) -> None:
    """The refusal says which confirmation is missing, who gives it, and by which command."""
    refused = refusal(lambda: reader.store.get(LABELLED_BLOB).read())
    assert isinstance(refused, Denied)
    assert "nobody but its maker has confirmed who enrolled" in refused.message
    assert "security-officer, approver or dpo" in refused.hint
    assert "falaj approvals list --state waiting --action people.confirm" in refused.hint


def may_read(reader: Any) -> bool:
    return bool(reader.policy.may((f"store.get {LABELLED_BLOB}",))[0].allowed)


def test_invented_reader_reads_no_labelled_data(bank: Bank) -> None:
    """An administrator adds an account, redeems its code alone, and tries to read by every way that an account has."""
    fatima = bank.as_("fatima")
    issued, ghost = bank.redeem(fatima.people.add("ghost", ("data-scientist",), jurisdiction="AE").code)
    assert ghost.store.get(BLOB).read() == ROWS, "its role counts at once for data without a label"
    ghost.store.put("blob:fraud/lawless", ROWS, label="NONE")
    assert ghost.store.get("blob:fraud/lawless").read() == ROWS, "and for data that no law restricts"
    assert_reads_no_labelled_data(ghost)
    inputs, spec = {"data": LABELLED_BLOB}, {"command": ["cat", "data"]}
    for act in (
        lambda: ghost.store.put("blob:fraud/laundered", b"x", inputs=[LABELLED_BLOB]),
        lambda: ghost.store.copy(LABELLED_BLOB, to=ghost.zones.list()[0].id),
        lambda: ghost.track.start("experiment:fraud/laundering", inputs=inputs),
        lambda: ghost.jobs.add("job:fraud/reader", spec, inputs=inputs),
    ):
        refused = refusal(act)
        assert isinstance(refused, Denied)
        assert "nobody but its maker has confirmed who enrolled" in refused.message
    fatima.people.add("robot-of-ghost", ("data-scientist",), service=True, projects=("fraud",), jurisdiction="AE")
    robot = bank.server.as_(ghost.people.token("robot-of-ghost").token)
    assert_reads_no_labelled_data(robot)
    # Neither the administrator, nor the account itself, nor an approver whom the administrator made confirms it.
    for voter in (fatima, ghost, bank.as_("badr"), bank.as_("sami")):
        act = lambda voter=voter: voter.approvals.give(issued.confirmation)  # noqa: E731
        assert isinstance(refusal(act), Denied | NotFound)
    assert_reads_no_labelled_data(ghost)
    approve_as_officer(fatima, issued.confirmation)
    wait_until(lambda: bank.as_("omar").people.show("person:people/ghost").confirmed > 0, 10)
    wait_until(lambda: may_read(ghost), 10)
    assert ghost.store.get(LABELLED_BLOB).read() == ROWS
    assert robot.store.get(LABELLED_BLOB).read() == ROWS


def test_role_that_reads_given_later_waits_for_the_confirmation_too(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    issued, clerk = bank.redeem(fatima.people.add("clerk", ("operator",), jurisdiction="AE").code)
    assert issued.confirmation == "", "an account without rights over data needs nobody's confirmation"
    fatima.people.change("clerk", roles=("data-scientist",))
    assert_reads_no_labelled_data(clerk)
    confirm_roles(fatima, "clerk")
    wait_until(lambda: may_read(clerk), 10)
    assert clerk.store.get(LABELLED_BLOB).read() == ROWS


def test_reader_who_enrolled_anew_is_confirmed_anew(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    enroll(fatima, "yara", ("data-scientist",), jurisdiction="AE")
    waiting = fatima.people.reset("yara", "lost laptop")
    approve_as_officer(fatima, waiting.approval)
    _, thief = bank.redeem(fatima.people.reset("yara", "lost laptop").code)
    assert_reads_no_labelled_data(thief)


def test_invented_steward_gets_nobodys_data_from_the_privacy_service(bank: Bank) -> None:
    """Requests of persons are answered with the platform's own authority, so an invented person gets none answered."""
    fatima = bank.as_("fatima")
    _, ghost = bank.redeem(fatima.people.add("ghost-steward", ("data-steward",), jurisdiction="AE").code)
    request = str(bank.as_("dana").privacy.ask("access", "784-1990-1234567-1").ref)
    for act in (
        lambda: ghost.privacy.search(request, "784-1990-1234567-1"),
        lambda: ghost.privacy.disclose(request, "784-1990-1234567-1"),
    ):
        refused = refusal(act)
        assert isinstance(refused, Denied)
        assert "confirmed who enrolled" in refused.message


def test_administrator_gives_an_enrolled_account_no_role_that_decides(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    puppet = bank.server.as_(enroll(fatima, "late-approver", ("data-scientist",)))
    changed = fatima.people.change("late-approver", roles=("data-scientist", "approver"))
    assert (changed.roles, changed.requested_roles) == (("data-scientist",), ("approver",))
    assert puppet.people.whoami().roles == ("data-scientist",)
    confirm_roles(fatima, "late-approver")
    wait_until(lambda: puppet.people.whoami().roles == ("approver", "data-scientist"), 10)


def test_new_enrolment_of_an_approver_is_confirmed_anew(bank: Bank) -> None:
    """A second person approves the reset of an approver; the administrator redeems the code instead of the approver."""
    fatima = bank.as_("fatima")
    enroll(fatima, "hamad", ("approver",))
    waiting = fatima.people.reset("hamad", "lost laptop")
    approve_as_officer(fatima, waiting.approval)
    with falaj.connect(bank.server.url) as stranger:
        issued = stranger.people.enroll(fatima.people.reset("hamad", "lost laptop").code)
    thief = bank.server.as_(issued.token)
    assert thief.people.whoami().roles == ()
    assert issued.fingerprint in bank.as_("sami").approvals.show(issued.confirmation).approval.reason
    approve_as_officer(fatima, issued.confirmation)
    wait_until(lambda: thief.people.whoami().roles == ("approver",), 10)


def test_confirmation_of_an_older_enrolment_gives_nothing(bank: Bank) -> None:
    fatima = bank.as_("fatima")
    with falaj.connect(bank.server.url) as stranger:
        issued = stranger.people.enroll(fatima.people.add("rashid", ("approver",)).code)
    fatima.people.change("rashid", roles=("auditor",))
    approve_as_officer(fatima, issued.confirmation)
    assert bank.server.as_(issued.token).people.whoami().roles == ("auditor",)
    assert fatima.people.show("person:people/rashid").roles == ("auditor",)


def test_a_later_officer_of_a_tenant_needs_a_second_person_of_the_installation(bank: Bank) -> None:
    root = bank.server.as_()
    waiting = root.people.appoint_officer("bank", "second-officer")
    assert (waiting.state, waiting.code) == ("waiting", "")
    assert isinstance(refusal(lambda: root.approvals.give(waiting.approval)), Denied)
    assert isinstance(refusal(lambda: bank.as_("fatima").people.appoint_officer("bank", "own")), Denied)
    assert isinstance(refusal(lambda: root.people.appoint_officer("house", "own")), Denied)
    approve_as_officer(root, waiting.approval)
    appointed = root.people.appoint_officer("bank", "second-officer")
    assert bank.server.as_(redeem(root, appointed)).people.whoami().roles == ("security-officer",)


def test_only_the_platform_asks_for_a_confirmation(bank: Bank) -> None:
    act = lambda: bank.as_("mona").approvals.ask("people.confirm", f"sha256:{'5' * 64}", "a test")  # noqa: E731
    assert isinstance(refusal(act), Invalid)
