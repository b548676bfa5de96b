"""Trusted time: tokens of a real authority on checkpoints, what is refused, and clocks that are compared."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.audit.clock_comparison import compare_clocks, make_clock_reading
from falaj.audit.timestamping import TimestampLoop, stamp_log
from falaj.audit.trusted_time import request_timestamp, verify_token
from falaj.backends.cloud_objects import CloudObjectStore
from falaj.backends.postgres import PostgresLedgerStore
from falaj.cli.doctor import _other_clocks, _trusted_time
from falaj.core.errors import CorruptData, Denied, Invalid, Unavailable
from falaj.core.settings import TimestampSettings
from falaj.server import LocalClient
from falaj.store.reconcile_loop import LoopIteration
from tests.servers.process import Missing
from tests.servers.seaweed import Bucket
from tests.servers.timestamp import TimestampServer
from tests.town import LABEL, Town, refusal

TEXT = b"falaj/test/bank/home\n12\nroot\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimestampServer]:
    pytest.importorskip("rfc3161_client")
    try:
        server = TimestampServer(tmp_path_factory.mktemp("tsa"))
    except Missing as reason:
        pytest.skip(str(reason))
    with server:
        yield server


@pytest.fixture(autouse=True)
def honest(authority: TimestampServer) -> None:
    authority.change, authority.status = (lambda answer: answer), 200


def test_a_token_of_a_real_authority_is_verified(authority: TimestampServer) -> None:
    stamped = request_timestamp(authority.url, authority.ca, TEXT)
    assert verify_token(stamped.token, TEXT, authority.ca) == stamped.at
    assert abs(stamped.skew_s) < 60
    assert authority.verify(stamped.token, TEXT), "openssl agrees"


def test_what_is_not_about_these_bytes_is_refused(authority: TimestampServer) -> None:
    token = request_timestamp(authority.url, authority.ca, TEXT).token
    with pytest.raises(CorruptData):
        verify_token(token, TEXT + b"x", authority.ca)


def test_an_answer_to_another_question_is_refused(authority: TimestampServer) -> None:
    """A token that was given earlier has another nonce."""
    earlier = request_timestamp(authority.url, authority.ca, TEXT).token
    authority.change = lambda _answer: earlier
    with pytest.raises(CorruptData, match="Nonce"):
        request_timestamp(authority.url, authority.ca, TEXT)


def test_a_token_of_another_authority_is_refused(authority: TimestampServer, tmp_path: Path) -> None:
    with TimestampServer(tmp_path / "stranger") as stranger, pytest.raises(CorruptData):
        request_timestamp(stranger.url, authority.ca, TEXT)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.98])
def test_a_damaged_token_is_refused(authority: TimestampServer, place: float) -> None:
    def damage(answer: bytes) -> bytes:
        data = bytearray(answer)
        data[int(len(data) * place)] ^= 1
        return bytes(data)

    authority.change = damage
    with pytest.raises(CorruptData):
        request_timestamp(authority.url, authority.ca, TEXT)


def test_a_server_that_does_not_answer_is_unavailable(authority: TimestampServer, tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        request_timestamp("http://127.0.0.1:9/tsa", authority.ca, TEXT)
    authority.status = 503
    with pytest.raises(Unavailable):
        request_timestamp(authority.url, authority.ca, TEXT)
    authority.status, authority.change = 200, lambda _answer: b"not DER"
    with pytest.raises(CorruptData):
        request_timestamp(authority.url, authority.ca, TEXT)
    authority.change = lambda answer: answer
    with pytest.raises(Invalid):
        request_timestamp(authority.url, tmp_path / "missing.pem", TEXT)


def test_checkpoints_are_dated_once_and_the_token_lies_beside_them(authority: TimestampServer, tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    town.as_("salem").store.put("blob:fraud/x", [b"rows"], label=LABEL)
    omar = town.as_("omar")
    settings = TimestampSettings(server=authority.url, ca=str(authority.ca))
    ctx = replace(town.house.context(town.actor("omar")), tenant="bank", zone="ae-dubai")
    sealed = omar.audit.seal()
    stamp = stamp_log(town.house.ledger, ctx, settings, request_timestamp)
    assert stamp is not None
    assert stamp.checkpoint == sealed.number
    (listed,) = omar.audit.timestamps()
    assert listed == stamp
    text = next(each for each in omar.audit.checkpoints() if each.number == stamp.checkpoint).note
    assert text.startswith(listed.text)
    assert authority.verify(base64.b64decode(listed.token), listed.text.encode()), (
        "an auditor needs openssl and no more"
    )
    asked = authority.queries
    assert stamp_log(town.house.ledger, ctx, settings, request_timestamp) is None, "it is dated already"
    assert authority.queries == asked
    assert isinstance(refusal(town.as_("amal").audit.timestamps), Denied)
    (event,) = town.events(verb="audit.timestamp")
    assert str(event.body["checkpoint"]) == str(stamp.checkpoint)
    town.close()


def test_a_timestamp_far_from_our_clock_is_refused(authority: TimestampServer, tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    omar = town.as_("omar")
    omar.audit.seal()
    ctx = replace(town.house.context(town.actor("omar")), tenant="bank", zone="ae-dubai")
    settings = TimestampSettings(server=authority.url, ca=str(authority.ca), max_skew_s=-1.0)
    with pytest.raises(CorruptData, match="clock differs"):
        stamp_log(town.house.ledger, ctx, settings, request_timestamp)
    assert omar.audit.timestamps() == ()
    town.close()


def test_the_loop_dates_every_log_and_reports_a_clock_that_differs(
    authority: TimestampServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    town = Town(tmp_path / "house")
    town.as_("omar").audit.seal()
    settings = TimestampSettings(server=authority.url, ca=str(authority.ca))
    loop = TimestampLoop(town.house.ledger, settings, lambda: {"database": lambda: 1_000_000.0})
    loop.step(LoopIteration(town.house.system(), 1, lambda: True))
    assert len(town.as_("omar").audit.timestamps()) == 1
    assert "clocks differ" in caplog.text
    (event,) = town.events("house", verb="audit.clock_skew")
    assert event.body["source"] == "database"
    town.close()


def test_clocks_are_compared_over_the_way_there_and_back() -> None:
    ticks = iter([100.0, 102.0, 200.0, 200.0])

    def broken() -> float:
        raise Unavailable("no answer", "")

    readings = compare_clocks({"database": lambda: 131.0, "object store": broken}, lambda: next(ticks))
    assert (readings[0].skew_s, readings[0].uncertainty_s, readings[0].within_limit) == (30.0, 1.0, False)
    assert (readings[1].failed, readings[1].within_limit) == ("no answer", False)
    assert make_clock_reading("timestamp server", -4.0, 0.5).within_limit


def test_the_database_and_the_object_store_tell_their_time(postgres_url: str, s3_url: Bucket) -> None:
    store = PostgresLedgerStore(postgres_url, {})
    try:
        readings = compare_clocks(
            {"database": store.remote_time, "object store": CloudObjectStore(s3_url.url, s3_url.options).remote_time}
        )
    finally:
        store.close()
    assert [(reading.source, reading.failed, reading.within_limit) for reading in readings] == [
        ("database", "", True), ("object store", "", True),
    ]  # fmt: skip


def test_the_doctor_says_whether_the_log_is_dated(authority: TimestampServer, tmp_path: Path) -> None:
    town = Town(tmp_path / "house", **{"timestamp.server": authority.url, "timestamp.ca": str(authority.ca)})
    owner = LocalClient(town.house, town.house.owner())
    assert _trusted_time(owner).found == "no checkpoint is dated yet"
    assert "none to compare with" in _other_clocks(owner).found
    town.close()
