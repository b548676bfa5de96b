"""data_never_leaves_the_zone: a bank's hall is a zone with an agent that dials out. Data is published, worked on and
read there; the platform leads all of it. What passes the link, opened with the agent's keys, holds no byte of it."""

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.ground import Ground, ground, until
from tests.servers import netns, wire

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(netns.available()), reason=netns.available())]

PLANTED = "PLANTED-784-1985-1234567-1"
TRAIN = """
import os, pathlib
from falaj import worker
here = worker.attempt()
text = (pathlib.Path(here.inputs["data"]) / "people.csv").read_text()
here.metric("rows", text.count("\\n"), 1)
(pathlib.Path(here.outputs["result"]) / "made.csv").write_text("made," + text)
"""


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("bank"), ("ae-onprem",)) as made:
        yield made


def test_data_never_leaves_the_zone(bank: Ground, tmp_path: Path) -> None:
    zone = bank.zones["ae-onprem"]
    zone.stop()
    heard = netns.Capture(zone.host, "up0")  # from before its first word, so that there is nothing we cannot read
    zone.start()
    until(lambda: bank.state("ae-onprem") == "connected")
    data, out, program = tmp_path / "data", tmp_path / "out", tmp_path / "program"
    for folder in (data, program):
        folder.mkdir()
    rows = "".join(f"{n},{PLANTED}-{n}\n" for n in range(2000))
    (data / "people.csv").write_text(f"id,emirates_id\n{rows}")
    (data / "noise.bin").write_bytes(random.Random(7).randbytes(3_000_000))
    (program / "train.py").write_text(TRAIN)

    made = zone.falaj("catalog", "publish", "dataset:fraud/people", str(data), "--label", "AE-PDPL,sensitive")
    told = ("--inputs", "data=dataset:fraud/people", "--outputs", "result=dataset:fraud/made")
    job = zone.submit(program / "train.py", *told)
    until(lambda: bank.person("jobs", "show", job)["state"] in ("succeeded", "failed"))
    done = bank.person("jobs", "show", job)
    assert done["state"] == "succeeded", done["note"]

    # A model of the zone is looked into by the agent, and the platform hears what it is.
    zone.falaj("catalog", "publish", "model:fraud/scorer", str(data), "--label", "AE-PDPL,sensitive")
    assert "model:fraud/scorer@v1" in json.dumps(bank.person("catalog", "show", "model:fraud/scorer"))

    # In the zone it can be read; through the platform not, and it is said where.
    zone.falaj("catalog", "checkout", done["outputs"]["result"], str(out))
    assert (out / "made.csv").read_text().count(PLANTED) == 2000
    refused = bank.person("catalog", "checkout", made["ref"], str(tmp_path / "outside"), fails=True)
    assert refused["code"] == "denied"
    assert zone.door in refused["hint"]
    assert not (tmp_path / "outside").exists() or not any((tmp_path / "outside").glob("*.csv"))
    refused = bank.person("catalog", "publish", "dataset:fraud/more", str(data), "--zone", "ae-onprem", fails=True)
    assert refused["code"] == "denied"

    # What the platform knows of the table shows no value of it, and its disk holds none.
    version = bank.person("catalog", "show", made["ref"])
    assert version["label"]["classification"] == 2
    assert not _holding(bank.home / "control", PLANTED.encode())
    assert not _holding(zone.home / "blobs", PLANTED.encode())
    assert not (zone.home / "agent/attempts" / done["attempts"][-1]["id"] / "inputs").exists()

    traffic = wire.assemble(heard.stop())
    assert traffic.others == 0
    assert traffic.unread < 2000  # the last words of the agent that went away
    assert {(way.source, way.target, way.target_port) for way in traffic.opened} == {
        (zone.host.address, netns.HUB, 8470)
    }
    assert traffic.size_bytes < 3_000_000  # less than the noise alone
    said = b"\n".join(wire.read(traffic, zone.key_log).values())
    assert b"/v1/agents/listen" in said
    assert b"dataset:fraud/people" in said  # so we do read what passes
    _assert_absent(said, (data / "noise.bin").read_bytes(), PLANTED)
    raw = b"\n".join(traffic.streams.values())
    for piece in (zone.home / "blobs").rglob("*"):
        if piece.is_file() and piece.stat().st_size > 200:
            sealed = piece.read_bytes()
            for at in range(180, len(sealed) - 24, max(1, len(sealed) // 50)):
                window = sealed[at : at + 24]
                assert window not in said
                assert window not in raw
                assert base64.b64encode(window)[:30] not in said


def _assert_absent(said: bytes, noise: bytes, planted: str) -> None:
    assert planted.encode() not in said
    assert planted.encode().hex().encode() not in said
    for shift in range(3):
        coded = base64.b64encode(b" " * shift + planted.encode() + b" " * 3)
        assert coded[4 : len(planted) // 3 * 4 - 4] not in said
    for at in range(0, len(noise) - 24, 10_000):
        assert noise[at : at + 24] not in said


def _holding(folder: Path, planted: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and planted in path.read_bytes()]
