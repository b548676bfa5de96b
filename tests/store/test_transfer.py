"""The byte channel: tickets open one thing for one person, receipts prove what was sent, bundles live as a whole."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.byte_channel import UploadReceipt
from falaj.core.errors import Conflict, Denied, FalajError, Invalid
from falaj.core.transfer_permits import TransferTicket
from falaj.store.collector import Collector
from tests.town import LABEL, Town, refusal

NAME = "dataset:fraud/tx"


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path / "house")
    yield town
    town.close()


def publish(
    here: Any, *pieces: bytes, name: str = NAME, label: str = LABEL, root: int = 0
) -> tuple[Any, list[UploadReceipt]]:
    begun = here.catalog.begin(name)
    receipts = [here.bytes.put(begun.ticket, [piece]) for piece in pieces]
    whole = here.bytes.bundle(begun.ticket, tuple(receipts))
    ref = here.catalog.commit(name, made=made(begun.ticket, whole, receipts[-1], root), label=LABEL)
    return ref, receipts


def made(ticket: str, whole: UploadReceipt, shard: UploadReceipt, root: int = 0) -> dict[str, Any]:
    batch = {"bundle": whole.digest, "shard": shard.digest}
    tree = {"root": f"b3:{root:064x}", "num_files": 1, "size_bytes": whole.size, "batches": [batch]}
    return {
        "ticket": ticket,
        "tree": tree,
        "receipts": [{"digest": whole.digest, "size": whole.size, "mac": whole.mac}],
    }


def test_what_was_sent_comes_back_whole_and_in_ranges(town: Town) -> None:
    amal = town.as_("amal")
    ref, (pack, _) = publish(amal, b"0123456789" * 1000, b"shard")
    opened = amal.catalog.open(ref)
    assert b"".join(amal.bytes.get(opened.ticket, pack.digest)) == b"0123456789" * 1000
    assert b"".join(amal.bytes.get(opened.ticket, pack.digest, 5, 15)) == b"5678901234"


def test_a_ticket_opens_nothing_for_another_person(town: Town) -> None:
    amal, mona = town.as_("amal"), town.as_("mona")
    ref, (pack, _) = publish(amal, b"bytes", b"shard")
    opened = amal.catalog.open(ref)
    assert isinstance(refusal(lambda: list(mona.bytes.get(opened.ticket, pack.digest))), Denied)
    begun = amal.catalog.begin(NAME)
    assert isinstance(refusal(lambda: mona.bytes.put(begun.ticket, [b"x"])), Denied)


def test_a_ticket_to_write_does_not_read_and_the_other_way_round(town: Town) -> None:
    amal = town.as_("amal")
    ref, (pack, _) = publish(amal, b"bytes", b"shard")
    begun, opened = amal.catalog.begin(NAME), amal.catalog.open(ref)
    assert isinstance(refusal(lambda: list(amal.bytes.get(begun.ticket, pack.digest))), Denied)
    assert isinstance(refusal(lambda: amal.bytes.put(opened.ticket, [b"x"])), Denied)


def test_a_ticket_reads_what_its_version_holds_and_no_more(town: Town) -> None:
    amal = town.as_("amal")
    ref, _ = publish(amal, b"mine", b"shard")
    _, (other, _) = publish(amal, b"of another name", b"shard two", name="dataset:fraud/other")
    opened = amal.catalog.open(ref)
    assert isinstance(refusal(lambda: list(amal.bytes.get(opened.ticket, other.digest))), Denied)


@pytest.mark.parametrize("text", ["", ".", "e30.", "x" * 500, "e30=." + "0" * 64, "\ud800.\ud800"])
def test_a_forged_ticket_is_refused(town: Town, text: str) -> None:
    amal = town.as_("amal")
    assert isinstance(refusal(lambda: amal.bytes.put(text, [b"x"])), FalajError)


def test_an_altered_ticket_is_refused(town: Town) -> None:
    amal = town.as_("amal")
    ticket = amal.catalog.begin(NAME).ticket
    for place in (0, len(ticket) // 2, len(ticket) - 1):
        altered = ticket[:place] + ("A" if ticket[place] != "A" else "B") + ticket[place + 1 :]
        assert isinstance(refusal(lambda text=altered: amal.bytes.put(text, [b"x"])), FalajError)


def test_a_ticket_ends(town: Town) -> None:
    transfers, house = town.house.transfers, town.house
    amal = house.context(town.actor("amal"))
    old = TransferTicket("read", "dataset:fraud/tx@v1", "bank", "ae-dubai", "bank/amal", amal.now() - 1)
    with pytest.raises(Denied, match="expired"):
        transfers.get(amal, transfers._permits.ticket(old), "b3:" + "0" * 64)


def test_nobody_builds_on_bytes_they_did_not_send(town: Town) -> None:
    """Knowing a digest is not having the bytes: else a list of digests would be a way to read."""
    salem, amal = town.as_("salem"), town.as_("amal")
    secret, (pack, shard) = publish(salem, b"not for amal", b"shard", name="dataset:payroll/staff")
    begun = amal.catalog.begin(NAME)
    forged = UploadReceipt(pack.digest, pack.size, "0" * 64)
    assert isinstance(refusal(lambda: amal.bytes.bundle(begun.ticket, (forged,))), Denied)
    # A true receipt of one thing is worth nothing for another.
    assert isinstance(refusal(lambda: amal.bytes.bundle(begun.ticket, (pack, shard))), Denied)
    whole = salem.catalog.open(secret).tree.batches[0].bundle
    tree = {
        "root": "b3:" + "1" * 64, "num_files": 1, "size_bytes": 1,
        "batches": [{"bundle": whole, "shard": shard.digest}],
    }  # fmt: skip
    stolen = {"ticket": begun.ticket, "tree": tree, "receipts": []}
    assert isinstance(refusal(lambda: amal.catalog.commit(NAME, made=stolen)), Denied)


def test_a_version_is_built_on_the_one_before(town: Town) -> None:
    amal = town.as_("amal")
    first, (pack, _) = publish(amal, b"old bytes", b"shard")
    begun = amal.catalog.begin(NAME)
    assert begun.base == first
    before = amal.catalog.open(begun.base).tree.batches[0]
    new = amal.bytes.put(begun.ticket, [b"new shard"])
    whole = amal.bytes.bundle(begun.ticket, (new,))
    both = made(begun.ticket, whole, new, root=7)
    both["tree"]["batches"] = [
        {"bundle": before.bundle, "shard": before.shard},
        *both["tree"]["batches"],
    ]
    second = amal.catalog.commit(NAME, made=both, base=begun.base)
    assert second.version == "v2"
    opened = amal.catalog.open(second)
    assert b"".join(amal.bytes.get(opened.ticket, pack.digest)) == b"old bytes"
    # Without naming what it is built on, the old batch is nobody's.
    assert isinstance(refusal(lambda: amal.catalog.commit(NAME, made=both)), Denied)


def test_a_bundle_has_bounds(town: Town) -> None:
    amal = town.as_("amal")
    begun = amal.catalog.begin(NAME)
    assert isinstance(refusal(lambda: amal.bytes.bundle(begun.ticket, ())), Invalid)
    one = amal.bytes.put(begun.ticket, [b"x"])
    assert isinstance(refusal(lambda: amal.bytes.bundle(begun.ticket, (one,) * 5000)), Invalid)


def test_a_bundle_keeps_its_pieces_and_goes_with_its_last_holder(town: Town) -> None:
    amal, house = town.as_("amal"), town.house
    _, (pack, shard) = publish(amal, b"kept", b"shard")
    begun = amal.catalog.begin("dataset:fraud/never")
    lost = amal.bytes.put(begun.ticket, [b"never committed"])
    collector = Collector(house.blobs, ("dataset",), grace_s=10.0)
    later = house.context(town.actor("ola"))
    for days in (1, 2, 3):
        collector.collect(replace(later, now=lambda days=days: later_than(days)))
    opened = amal.catalog.open(NAME)
    for piece in (pack, shard):
        assert b"".join(amal.bytes.get(opened.ticket, piece.digest))
    with house.ledger.read(later) as tx:
        known = {record.key.name for record in tx.find("object", tenant="bank", project="store").records}
    assert lost.digest.removeprefix("b3:") not in known


def test_what_is_being_sent_is_safe_from_the_collector(town: Town) -> None:
    amal, house = town.as_("amal"), town.house
    begun = amal.catalog.begin(NAME)
    pack = amal.bytes.put(begun.ticket, [b"sent, not yet committed"])
    collector = Collector(house.blobs, ("dataset",), grace_s=10.0)
    soon = house.context(town.actor("ola"))
    for seconds in (15.0, 30.0):
        collector.collect(replace(soon, now=lambda after=seconds: time.time() + after))
    shard = amal.bytes.put(begun.ticket, [b"shard"])
    whole = amal.bytes.bundle(begun.ticket, (pack, shard))
    assert amal.catalog.commit(NAME, made=made(begun.ticket, whole, shard)).version == "v1"


def test_pieces_that_were_taken_back_are_said_to_be(town: Town) -> None:
    amal, house = town.as_("amal"), town.house
    begun = amal.catalog.begin(NAME)
    pack = amal.bytes.put(begun.ticket, [b"left alone for days"])
    collector = Collector(house.blobs, ("dataset",), grace_s=10.0)
    later = house.context(town.actor("ola"))
    for days in (1, 2, 3):
        collector.collect(replace(later, now=lambda days=days: later_than(days)))
    assert isinstance(refusal(lambda: amal.bytes.bundle(begun.ticket, (pack,))), Conflict)
    assert isinstance(refusal(lambda: amal.bytes.put(begun.ticket, [b"more"])), Conflict)


def test_a_bundle_is_not_read_as_bytes(town: Town) -> None:
    amal = town.as_("amal")
    ref, _ = publish(amal, b"a", b"b")
    opened = amal.catalog.open(ref)
    assert isinstance(refusal(lambda: list(amal.bytes.get(opened.ticket, opened.tree.batches[0].bundle))), Denied)


def test_the_same_pieces_are_the_same_bundle_and_cost_nothing(town: Town) -> None:
    amal = town.as_("amal")
    one, two = publish(amal, b"same", b"shard"), publish(amal, b"same", b"shard")
    assert one == two


def later_than(days: int) -> float:
    return time.time() + days * 86400
