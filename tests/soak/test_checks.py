"""The checker itself: it must say no to a planted loss, double, alteration, leak and changed log."""

import json
import os
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.people import enroll
from tests.replica import Replica
from tests.servers.process import wait_until
from tests.soak import procs
from tests.soak.final import judged, offline
from tests.soak.journal import ACK, UNSURE, Entry, Journal, allowed, breaches, read
from tests.soak.leaks import Sample, growths
from tests.soak.procs import Gauge
from tests.soak.verdict import Check, Verdict
from tests.worker.slot import NURSERY, framed, gone

BLOB = ("blob", "blob:soak/a")


def _entry(value: str | None, told: str = ACK, key: tuple[str, str] = BLOB) -> Entry:
    return Entry(*key, value, told, 0.0, "c0")


def test_what_was_written_may_be_what_is_there() -> None:
    assert allowed([_entry("one")]) == {BLOB: {"one"}}
    assert allowed([_entry("one"), _entry("two")]) == {BLOB: {"two"}}
    assert allowed([_entry("one"), _entry(None, UNSURE)]) == {BLOB: {"one", None}}
    assert allowed([_entry("one", UNSURE)]) == {BLOB: {None, "one"}}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({BLOB: None}, "lost"),
        ({BLOB: "one one"}, "doubled"),
        ({BLOB: "other bytes"}, "altered"),
        ({}, "not looked at"),
    ],
)
def test_a_planted_loss_is_found(found: dict[tuple[str, str], str | None], why: str) -> None:
    assert breaches([_entry("one")], {BLOB: "one"}) == []
    assert len(breaches([_entry("one")], found)) == 1, why
    assert not judged([_entry("one")], found, "all").ok


def test_what_was_deleted_must_be_gone() -> None:
    assert len(breaches([_entry("one"), _entry(None)], {BLOB: "one"})) == 1


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write("c1", *BLOB, "one")
    journal.write("c1", *BLOB, None, UNSURE)
    assert [(one.value, one.told) for one in read(journal.path)] == [("one", ACK), (None, UNSURE)]
    journal.close()


def _life(more: float, what: str) -> list[Sample]:
    held = [{"memory_mib": 100.0 + n % 3, "files": 30 + n % 2, "threads": 20} for n in range(60)]
    for n, one in enumerate(held):
        one[what] += more * n / 60
    return [
        Sample(10.0 * n, 7, "replica 0", Gauge(one["memory_mib"], int(one["files"]), int(one["threads"])))
        for n, one in enumerate(held)
    ]


@pytest.mark.parametrize(("what", "leak"), [("memory_mib", 60.0), ("files", 30.0), ("threads", 30.0)])
def test_a_planted_leak_is_found(what: str, leak: float) -> None:
    assert all(one.ok for one in growths(_life(0.0, what)))
    assert [one.ok for one in growths(_life(leak, what))].count(False) == 1


def test_a_short_life_says_nothing() -> None:
    assert growths(_life(60.0, "files")[:10]) == []


def test_a_planted_change_of_the_log_is_found(tmp_path: Path) -> None:
    with Replica(tmp_path / "house") as replica:
        here = replica.as_(enroll(replica.as_(), "omar", ("auditor", "data-scientist"), jurisdiction="AE"))
        for n in range(5):
            here.approvals.ask("soak.run", f"sha256:{n:064d}", "soak")
        (tmp_path / "verify.py").write_bytes(here.audit.verifier().read())
        (tmp_path / "evidence.zip").write_bytes(here.audit.export().read())
    assert offline(tmp_path / "evidence.zip", tmp_path / "verify.py").ok
    with zipfile.ZipFile(tmp_path / "evidence.zip") as pack, zipfile.ZipFile(tmp_path / "altered.zip", "w") as altered:
        for name in pack.namelist():
            altered.writestr(name, pack.read(name).replace(b'"soak"', b'"SOAK"').replace(b"00004", b"00005"))
    assert not offline(tmp_path / "altered.zip", tmp_path / "verify.py").ok


def test_launcher_of_an_attempt_is_not_an_idle_launcher(tmp_path: Path) -> None:
    slots = [{"index": 0, "processes": 1}]
    document = {"attempt": "a-1", "command": ["sleep", "60"], "slots": slots, "folder": str(tmp_path), "grace_s": 0}
    request = {"context": f"{tmp_path}/context.json", "slot": 0, "log": f"{tmp_path}/log", "env": dict(os.environ)}
    with subprocess.Popen(NURSERY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        wait_until(lambda: len(procs.find_idle_launchers([nursery.pid])) == 2, 20)
        launcher, child = procs.find_idle_launchers([nursery.pid])
        nursery.stdin.write(framed({**request, "document": document}))
        nursery.stdin.flush()
        assert nursery.stdout.readline() == b"\n"
        wait_until(lambda: len(procs.find_idle_launchers([nursery.pid])) == 2, 20)
        assert not {launcher, child} & set(procs.find_idle_launchers([nursery.pid]))
        assert {launcher, child} <= {process.pid for process in procs.below(nursery.pid)}
        os.kill(launcher, signal.SIGKILL)
    gone(launcher, child)


def test_a_ground_that_did_not_come_to_its_end_has_failed(tmp_path: Path) -> None:
    verdict = Verdict("s", 1.0, "folder")
    verdict.checks["embedded"], verdict.figures["embedded"] = [Check("all is there", True)], {"faults": 3}
    verdict.give("embedded", tmp_path / "verdict.json")
    other = Verdict("s", 1.0, "folder")
    other.take("embedded", tmp_path / "verdict.json", 0)
    assert other.ok
    other.take("replicas", tmp_path / "nothing", 137)
    assert not other.ok


def test_the_last_line_is_for_machines() -> None:
    verdict = Verdict("s", 1.0, "folder")
    assert not verdict.ok, "nothing was looked at"
    verdict.checks["embedded"], verdict.figures["embedded"] = [Check("all is there", True)], {"faults": 3}
    assert json.loads(verdict.line())["ok"] is True
    verdict.checks["embedded"].append(Check("the log verifies", False, "it does not"))
    told = json.loads(verdict.line())
    assert (told["ok"], told["checks"]["embedded"]) == (False, {"all is there": True, "the log verifies": False})
    assert "FAIL  the log verifies" in verdict.table()
