"""The shelf of secrets: used by reference, recorded when opened, and their values nowhere else."""

import logging
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import Conflict, CorruptData, Denied, FalajError, Invalid, NotFound
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.govern.secret_service import KEPT_VERSIONS, SecretService, looks_like_secret
from falaj.store.codec import to_json
from tests.govern.keyhouse import House

VALUE = "canary-value-5b1e77"
NAME = Ref.parse("secret:fraud/db-password")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


@pytest.fixture
def shelf(house: House) -> SecretService:
    return SecretService(house.ledger, house.ring)


def test_a_secret_is_put_once_and_resolved_by_reference_after_a_restart(house: House, shelf: SecretService) -> None:
    view = shelf.put(house.ctx(), NAME, VALUE)
    assert view.reference == "secret://acme/uae/fraud/db-password#1"
    other = House(house.home)
    again = SecretService(other.ledger, other.ring)
    assert again.resolve(other.ctx(), view.reference) == VALUE.encode()
    assert again.reveal(other.ctx(), NAME) == VALUE
    other.close()


def test_every_opening_is_recorded_with_who_and_which_version(house: House, shelf: SecretService) -> None:
    reference = shelf.put(house.ctx(), NAME, VALUE).reference
    shelf.resolve(house.ctx(actor="run-7"), reference)
    shelf.reveal(house.ctx(actor="bob"), NAME)
    said = [(f.event.verb, f.event.actor, f.event.body.get("version")) for f in house.ledger.tail(tenant="acme")]
    assert said[-3:] == [("secrets.put", "alice", 1), ("secrets.resolve", "run-7", 1), ("secrets.reveal", "bob", 1)]


def test_rotation_keeps_pinned_versions_and_moves_the_floating_one(house: House, shelf: SecretService) -> None:
    shelf.put(house.ctx(), NAME, VALUE)
    view = shelf.rotate(house.ctx(), NAME)
    assert (view.current, view.versions) == (2, (1, 2))
    assert shelf.resolve(house.ctx(), "secret://acme/uae/fraud/db-password#1") == VALUE.encode()
    fresh = shelf.resolve(house.ctx(), "secret://acme/uae/fraud/db-password")
    assert fresh == shelf.resolve(house.ctx(), view.reference)
    assert len(fresh) >= 40
    for _ in range(KEPT_VERSIONS):
        view = shelf.put(house.ctx(), NAME, VALUE + "x")
    assert len(view.versions) == KEPT_VERSIONS
    with pytest.raises(NotFound):
        shelf.resolve(house.ctx(), "secret://acme/uae/fraud/db-password#1")


def test_a_deleted_secret_is_gone(house: House, shelf: SecretService) -> None:
    reference = shelf.put(house.ctx(), NAME, VALUE).reference
    shelf.delete(house.ctx(), NAME)
    with pytest.raises(NotFound):
        shelf.resolve(house.ctx(), reference)
    assert shelf.list(house.ctx()).secrets == ()
    assert house.verbs("acme")[-1] == "secrets.delete"


def test_secrets_of_others_do_not_exist_and_of_other_zones_are_not_used_here(
    house: House, shelf: SecretService
) -> None:
    shelf.put(house.ctx(), NAME, VALUE)
    with pytest.raises(NotFound) as foreign:
        shelf.resolve(house.ctx("beta"), "secret://acme/uae/fraud/db-password#1")
    with pytest.raises(NotFound) as absent:
        shelf.resolve(house.ctx("beta"), "secret://beta/uae/fraud/db-password#1")
    assert (foreign.value.message, absent.value.message) == ("there is no such secret", "there is no such secret")
    with pytest.raises(Denied):
        shelf.resolve(house.ctx(zone="eu"), "secret://acme/uae/fraud/db-password#1")
    with pytest.raises(NotFound):
        shelf.resolve(house.ctx(zone="eu"), "secret://acme/eu/fraud/db-password#1")
    with pytest.raises(Conflict):
        shelf.put(house.ctx(), NAME, VALUE, zone="eu")


def test_a_sealed_value_moved_to_another_name_does_not_open(house: House, shelf: SecretService) -> None:
    shelf.put(house.ctx(), NAME, VALUE)
    other = Ref.parse("secret:fraud/mine")
    shelf.put(house.ctx(), other, "public knowledge")
    with house.ledger.write(house.ctx()) as tx:
        theirs, mine = tx.need(NAME), tx.need(other)
        record = tx.put(other, {**mine.body, "versions": theirs.body["versions"]}, rev=mine.rev)
        tx.emit("swap", record.ref)
    with pytest.raises(CorruptData):
        shelf.reveal(house.ctx(), other)


def test_a_list_shows_references_never_values_and_only_allowed_cells(house: House, shelf: SecretService) -> None:
    shelf.put(house.ctx(), NAME, VALUE)
    page = shelf.list(house.ctx())
    assert [view.secret.name for view in page.secrets] == ["db-password"]
    assert VALUE not in to_json(page).decode()
    assert shelf.list(replace(house.ctx(), cells=lambda kind: frozenset())).secrets == ()
    assert shelf.show(house.ctx(), NAME).current == 1


def test_the_value_appears_nowhere(house: House, shelf: SecretService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    view = shelf.put(house.ctx(), NAME, VALUE)
    shelf.resolve(house.ctx(), view.reference)
    shelf.reveal(house.ctx(), NAME)
    said = [repr(view), repr(shelf), to_json(view).decode(), caplog.text]
    for act in (
        lambda: shelf.put(house.ctx(), NAME, VALUE * 10_000),
        lambda: shelf.put(house.ctx(), NAME, VALUE, zone="eu"),
        lambda: shelf.put(house.ctx(), Ref.parse("dataset:a/b"), VALUE),
        lambda: shelf.reveal(house.ctx(), NAME, 9),
    ):
        with pytest.raises(FalajError) as raised:
            act()
        said += [str(raised.value), str(raised.value.wire()), "".join(traceback.format_exception_only(raised.value))]
    said += [repr(fact) for fact in house.ledger.tail()]
    with house.ledger.read(house.ctx()) as tx:
        said.append(repr(tx.need(NAME)))
    assert not any(VALUE in text for text in said)
    for file in house.home.rglob("*"):
        if file.is_file():
            assert VALUE.encode() not in file.read_bytes()


def test_only_reveal_gives_a_value_and_it_is_never_remembered_as_an_outcome() -> None:
    verbs = list_operations(SecretService)
    assert [name for name, verb in verbs.items() if verb.result is str] == ["reveal"]
    assert (verbs["reveal"].group, verbs["reveal"].outside) == ("read", True)
    assert "resolve" not in verbs


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reference=st.one_of(st.text(max_size=60), st.from_regex(r"secret://[a-z/.#0-9A-Z]{0,40}", fullmatch=True)))
def test_arbitrary_references_never_open_anything(house: House, shelf: SecretService, reference: str) -> None:
    with pytest.raises((Invalid, NotFound, Denied)):
        shelf.resolve(house.ctx(), reference)


@pytest.mark.parametrize("value", ["", "x" * 65_537])
def test_a_value_has_a_sane_length(house: House, shelf: SecretService, value: str) -> None:
    with pytest.raises(Invalid):
        shelf.put(house.ctx(), NAME, value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("-----BEGIN RSA PRIVATE KEY-----\nMII", True),
        ("aws = AKIAIOSFODNN7EXAMPLE", True),
        ('password: "hunter2hunter2"', True),
        ("API_KEY=abcdefgh12345678", True),
        ("token = env:VAULT_TOKEN", False),
        ("password: secret://acme/uae/fraud/db#1", False),
        ("the password is kept elsewhere", False),
        ("lr = 0.001", False),
    ],
)
def test_the_scanner_knows_a_value_from_a_reference(text: str, found: bool) -> None:
    assert looks_like_secret(text) is found
