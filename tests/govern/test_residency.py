"""Residency the whole way: people, guard, desks and bytes in one house, and a census of where everything lies."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import Denied, FalajError
from falaj.core.label import Label
from falaj.core.settings import Settings
from falaj.govern.approvals import make_approval_ref
from falaj.govern.declassification import DECLASSIFY_ACTION, digest_declassification
from falaj.govern.records import DataMovement
from falaj.server import LocalClient, Server
from tests.documents import keep_contract
from tests.people import enroll, enroll_tenant

TEAM = {"amal": "data-scientist", "salem": "data-steward", "badr": "approver", "dana": "dpo", "fatima": "tenant-admin"}
DATA = b"id,name\n1,amal\n"


class Bank:
    """A house with a UAE zone and a foreign one, and a bank's people in it."""

    def __init__(self, folder: Path) -> None:
        self.house = Server(Settings(home=str(folder), zone="ae-dubai"))
        self.root = LocalClient(self.house, self.house.owner())
        self.root.zones.add("eu-west", "IE-D", "IE", ("EU-GDPR", "NONE"), 2, f"dir:{folder}/eu-west")
        self.actors = {"fatima": self.house.authenticate(enroll_tenant(self.root, "bank", "fatima"))}
        for name, role in TEAM.items():
            if name != "fatima":
                token = enroll(self.as_("fatima"), name, (role,), jurisdiction="AE")
                self.actors[name] = replace(self.house.authenticate(token), strong=True)

    def as_(self, name: str, purpose: str = "", **more: Any) -> Any:
        return LocalClient(self.house, replace(self.actors[name], **more), purpose)

    def approve(self, ref: object) -> None:
        for name in ("badr", "dana"):
            self.as_(name).approvals.give(str(ref))

    def grant(self, scope: str, purposes: tuple[str, ...] = ("fraud",)) -> Any:
        salem = self.as_("salem")
        return salem.zones.grant("AE-PDPL:23a", "ae-dubai", "eu-west", scope, purposes, keep_contract(salem))


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    made = Bank(tmp_path)
    yield made
    made.house.close()


def test_abroad_by_grant_and_no_longer(bank: Bank) -> None:
    amal = bank.as_("amal", "fraud")
    amal.store.put("blob:fraud/customers", DATA, label="AE-PDPL,sensitive,purpose=fraud")
    with pytest.raises(Denied, match="not cleared for AE-PDPL") as refused:
        amal.store.copy("blob:fraud/customers", to="eu-west")
    assert "falaj zones grant AE-PDPL:23a --src ae-dubai --dst eu-west" in refused.value.hint
    grant = bank.grant("blob:fraud/cust*")
    bank.approve(grant.approval)
    assert amal.store.copy("blob:fraud/customers", to="eu-west").zones == ("ae-dubai", "eu-west")
    amal.store.put("blob:fraud/customs", DATA, label="AE-PDPL,sensitive,purpose=fraud")
    bank.as_("dana").zones.revoke(f"grant:zones/{grant.grant.id}", reason="over")
    with pytest.raises(Denied, match="not cleared"):
        amal.store.copy("blob:fraud/customs", to="eu-west")


@pytest.mark.parametrize("place", ["", "GB", "ae"])
def test_looking_from_abroad_is_moving_abroad(bank: Bank, place: str) -> None:
    bank.as_("amal", "fraud").store.put("blob:fraud/customers", DATA, label="AE-PDPL,confidential,purpose=fraud")
    assert bank.as_("amal", "fraud").store.get("blob:fraud/customers").read() == DATA
    with pytest.raises(Denied):
        bank.as_("amal", "fraud", jurisdiction=place).store.get("blob:fraud/customers")


def test_lowered_by_two_people_it_may_go_where_the_lower_label_may(bank: Bank) -> None:
    amal = bank.as_("amal", "fraud")
    amal.store.put("blob:fraud/extract", DATA, label="AE-PDPL,confidential,purpose=fraud")
    report = keep_contract(bank.as_("salem"))["contract"]
    asked = bank.as_("salem").zones.declassify(
        "blob:fraud/extract@v1", "NONE", "k-anonymity", {"k": "20", "report": report}, "for the portal"
    )
    request = f"declassification:zones/{asked.id}"
    with pytest.raises(Denied, match="not approved"):
        bank.as_("salem").zones.lower(request, "blob:open/extract")
    bank.approve(make_approval_ref(DECLASSIFY_ACTION, digest_declassification(asked)))
    made = bank.as_("salem").zones.lower(request, "blob:open/extract")
    assert str(made) == "blob:open/extract@v1"
    assert amal.store.get("blob:open/extract").read() == DATA
    assert amal.store.copy("blob:open/extract", to="eu-west").zones == ("ae-dubai", "eu-west")
    with pytest.raises(Denied):
        amal.store.copy("blob:fraud/extract", to="eu-west")


LABELS = st.sampled_from(
    ["", "NONE", "confidential", "secret", "AE-PDPL,confidential", "AE-PDPL,sensitive,purpose=fraud",
     "AE-HEALTH,sensitive", "GDPR", "XX-LAW"]
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), LABELS, st.sampled_from(["ae-dubai", "eu-west", "mars"])),
        st.tuples(
            st.just("copy"), st.integers(0, 2), st.sampled_from(["", "fraud"]), st.sampled_from(["ae-dubai", "eu-west"])
        ),
        st.tuples(st.just("grant"), st.integers(0, 2), st.sampled_from(["fraud", "care"]), st.just("")),
    ),
    max_size=8,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_after_any_walk_nothing_lies_where_it_may_not(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    bank = Bank(tmp_path_factory.mktemp("census"))
    try:
        for what, number, word, zone in steps:
            name = f"blob:fraud/thing-{number}"
            with suppress(FalajError):
                _step(bank, what, name, word, zone)
        _census(bank)
    finally:
        bank.house.close()


def _step(bank: Bank, what: str, name: str, word: str, zone: str) -> None:
    if what == "put":
        bank.as_("amal", "fraud").store.put(name, DATA, label=Label.parse(word), zone=zone)
    elif what == "copy":
        bank.as_("amal", word).store.copy(name, to=zone)
    else:
        bank.approve(bank.grant(name, (word,)).approval)


def _census(bank: Bank) -> None:
    ctx = bank.house.context(bank.actors["fatima"])
    with bank.house.ledger.read(ctx) as tx:
        records = tx.find("blob", terms={"live": "yes"}).records
    for record in records:
        for zone in record.body["zones"]:
            verdicts = [
                bank.house.zones.verdict(
                    DataMovement("replicate", record.label, str(record.ref), "bank", zone, zone, purpose), ctx.now()
                )
                for purpose in ("fraud", "care", "")
            ]
            assert any(verdict.allowed for verdict in verdicts), (record.ref, zone, verdicts)
