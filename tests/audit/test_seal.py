"""Sealing: the same root however it is cut, no fork by any race, keys that follow one another, loops that wait."""

import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import proofs, signed_note
from falaj.audit.log_sealing import LogSealer
from falaj.audit.merkle import verify_consistency, verify_inclusion
from falaj.audit.seal_loop import SealLoop
from falaj.core.errors import Invalid, NotFound, StaleRevision, Unavailable
from falaj.store.reconcile_loop import LoopIteration, LoopRunner
from tests.audit import oracle
from tests.audit.house import House, embedded
from tests.audit.packs import check_files


@pytest.fixture
def house(tmp_path: Path) -> House:
    return embedded(tmp_path)


def leaves(house: House) -> list[bytes]:
    return [leaf for _, leaf, _ in house.ledger.leaves("", tenant="bank", zone="home", limit=10_000)]


def test_the_root_is_that_of_the_definition_however_it_is_cut(house: House) -> None:
    for count in (1, 2, 250, 5, 300, 1):
        house.act(count)
        checkpoint = house.sealer.seal(house.ctx(), "bank", "home")
        assert checkpoint is not None
        assert signed_note.decode_base64(checkpoint.root) == oracle.root(leaves(house))
    assert house.sealer.seal(house.ctx(), "bank", "home") is None
    log = house.log(house.ctx())
    assert (log.head.size, log.head.number) == (559, 6)


def test_every_event_has_its_place_and_proof(house: House) -> None:
    for count in (3, 300, 40):
        house.act(count)
        house.sealer.seal(house.ctx(), "bank", "home")
    log = house.log(house.ctx())
    facts = house.ledger.tail(tenant="bank", zone="home", limit=1000)
    root = signed_note.decode_base64(log.newest().root)
    for index, fact in enumerate(facts):
        assert proofs.find_event_index(log, fact.pos) == index
        if index % 37 == 0:
            proof = proofs.prove_event(log, fact)
            assert verify_inclusion(fact.leaf, index, 343, [bytes.fromhex(h) for h in proof.hashes], root)
    for old in (1, 3, 256, 303, 342, 343):
        grown = proofs.prove_growth(log, "o", old, 343)
        hashes = [bytes.fromhex(h) for h in grown.hashes]
        assert verify_consistency(old, 343, oracle.root([f.leaf for f in facts[:old]]), root, hashes)
    house.act(1)
    with pytest.raises(NotFound, match="not under a checkpoint"):
        proofs.find_event_index(log, house.ledger.tail(tenant="bank", zone="home", limit=1000)[-1].pos)
    with pytest.raises(NotFound):
        proofs.prove_growth(log, "o", 1, 344)


def test_logs_are_apart(house: House) -> None:
    house.act(3)
    house.act(2, tenant="clinic")
    house.act(4, zone="abroad")
    for tenant, zone, size in (("bank", "home", 3), ("clinic", "home", 2), ("bank", "abroad", 4)):
        checkpoint = house.sealer.seal(house.ctx(), tenant, zone)
        assert checkpoint is not None
        assert (checkpoint.origin, checkpoint.size) == (f"falaj/test/{tenant}/{zone}", size)


def test_never_inside_a_transaction(house: House) -> None:
    house.act(1)
    with house.ledger.write(house.ctx()), pytest.raises(Invalid):
        house.sealer.seal(house.ctx(), "bank", "home")


class Racing:
    """Log keys that let another sealer go first, at the worst moment: after the head was read, before it is written."""

    def __init__(self, house: House) -> None:
        self.house, self.races = house, 1

    def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
        if self.races:
            self.races -= 1
            self.house.act(1)
            self.house.sealer.seal(self.house.ctx(), tenant, zone)
        return self.house.signers.newest(tenant, zone)

    def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
        return self.house.signers.earlier(tenant, zone, version)


def test_the_slower_of_two_sealers_throws_its_work_away(house: House, tmp_path: Path) -> None:
    house.act(2)
    slow = LogSealer(house.ledger, Racing(house), "test")
    with pytest.raises(StaleRevision):
        slow.seal(house.ctx(), "bank", "home")
    log = house.log(house.ctx())
    assert (log.head.size, log.head.number) == (3, 1)
    house.act(1)
    again = LogSealer(house.ledger, Racing(house), "test")
    again.seal_all(house.ctx(), "bank", "home")
    assert check_files(tmp_path, dict(house.pack()))["ok"]


def test_sealers_and_writers_at_once_never_fork(house: House, tmp_path: Path) -> None:
    stop = threading.Event()
    wrong: list[BaseException] = []

    def seal() -> None:
        sealer = LogSealer(house.ledger, house.signers, "test")
        while not stop.is_set():
            try:
                with contextlib.suppress(StaleRevision):
                    sealer.seal(house.ctx(), "bank", "home")
            except BaseException as error:
                wrong.append(error)
                raise

    threads = [threading.Thread(target=seal) for _ in range(3)]
    writers = [threading.Thread(target=house.act, args=(60,)) for _ in range(3)]
    for thread in threads + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    house.sealer.seal_all(house.ctx(), "bank", "home")
    report = check_files(tmp_path, dict(house.pack()))
    assert report["ok"], report
    assert report["events"] == 180


def test_a_new_key_is_introduced_by_the_old_one(house: House, tmp_path: Path) -> None:
    house.act(1)
    house.sealer.seal(house.ctx(), "bank", "home")
    lagging = replace(house.signers, made={k: list(v) for k, v in house.signers.made.items()})
    house.signers.rotate("bank", "home")
    house.act(1)
    handover = house.sealer.seal(house.ctx(), "bank", "home")
    assert handover is not None
    text, lines = signed_note.split_note(handover.note)
    for version in (1, 2):
        public = signed_note.get_public_bytes(house.signers.earlier("bank", "home", version))
        assert any(signed_note.verify_signature_line(text, line, handover.origin, public) for line in lines)
    house.act(1)

    class Lagging:
        """A replica that has not heard of the new key, and can fetch it when it must."""

        def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
            return lagging.newest(tenant, zone)

        def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
            return house.signers.earlier(tenant, zone, version)

    later = LogSealer(house.ledger, Lagging(), "test").seal(house.ctx(), "bank", "home")
    assert later is not None
    assert later.key == handover.key
    assert check_files(tmp_path, dict(house.pack()))["ok"]


def test_times_of_checkpoints_only_grow(house: House) -> None:
    house.act(1)
    first = house.sealer.seal(house.ctx(), "bank", "home")
    house.time -= 1000
    house.act(1)
    second = house.sealer.seal(house.ctx(), "bank", "home")
    assert first is not None
    assert second is not None
    assert second.at > first.at


def turn(house: House) -> LoopIteration:
    return LoopIteration(house.ctx(tenant="house"), 1, lambda: True)


def test_the_loop_signs_together_what_came_together(house: House) -> None:
    loop = SealLoop(house.ledger, house.sealer, max_delay_s=1.0)
    house.act(5)
    house.act(5)
    assert loop.step(turn(house)) is False
    log = house.log(house.ctx())
    assert (log.head.number, log.head.size) == (1, 10)
    assert loop.step(turn(house)) is False
    assert house.log(house.ctx()).head.number == 1, "nothing came, so nothing is signed"
    assert loop.every_s <= 0.5, "twice in the time an event may wait"
    assert not getattr(loop, "eager", False), "a commit does not hurry it"


def test_the_loop_works_off_a_backlog(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falaj.audit.log_sealing.MAX_SEALED_EVENTS", 10)
    house.act(35)
    loop = SealLoop(house.ledger, house.sealer, max_delay_s=1.0)
    assert [loop.step(turn(house)) for _ in range(4)] == [True, True, True, False]
    log = house.log(house.ctx())
    assert (log.head.number, log.head.size) == (4, 35)
    assert not house.sealer.pending("bank", "home")


def test_the_loop_under_its_lease(house: House) -> None:
    house.act(3)
    house.act(3, tenant="clinic")
    loop = SealLoop(house.ledger, house.sealer, max_delay_s=0.0)
    LoopRunner(house.ledger, "one", [loop], lambda name: house.ctx(tenant="house")).run_once()
    assert house.log(house.ctx()).head.size == 3
    assert house.log(house.ctx(), "clinic").head.size == 3
    house.act(1)
    LoopRunner(house.ledger, "two", [loop], lambda name: house.ctx(tenant="house")).run_once()
    assert house.log(house.ctx()).head.size == 3, "another replica leads"


def test_a_log_without_its_key_does_not_hold_up_the_others(house: House) -> None:
    house.act(1, tenant="a-closed")
    house.act(1)

    class Closed:
        def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
            if tenant == "a-closed":
                raise Unavailable("the key is away")
            return house.signers.newest(tenant, zone)

        def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
            raise AssertionError

    with pytest.raises(Unavailable):
        SealLoop(house.ledger, LogSealer(house.ledger, Closed(), "test"), 1.0).step(turn(house))
    assert house.log(house.ctx()).head.size == 1


def test_a_lost_lease_ends_the_turn(house: House) -> None:
    house.act(1)
    assert SealLoop(house.ledger, house.sealer, 1.0).step(LoopIteration(house.ctx(), 1, lambda: False)) is False
    assert house.log(house.ctx()).head.size == 0


def test_no_checkpoint_is_older_than_an_event_under_it(house: House) -> None:
    """Who wrote an event may have had a clock that was ahead of the sealer's."""
    house.act(3)
    newest = max(fact.event.at for fact in house.ledger.tail(tenant="bank", zone="home", limit=10))
    house.time -= 1800
    checkpoint = house.sealer.seal(house.ctx(), "bank", "home")
    assert checkpoint is not None
    assert checkpoint.at >= newest
