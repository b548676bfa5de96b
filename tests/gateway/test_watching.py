"""What a real replica counted, through a gateway: it is checked, durable, and only then acknowledged; never twice."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from falaj.core.errors import Unavailable
from falaj.drift.profiles import build_profile, encode_profile, hash_profile, read_profile
from falaj.drift.records import PROFILE_FILE
from falaj.drift.tally import DataTally
from falaj.gateway.delta_receiver import DeltaReceiver, ReceivedDelta
from falaj.gateway.upstream_connection import UpstreamConnection
from falaj.monitor.baselines import make_baseline
from falaj.monitor.drawn_rows import read_drawn_rows
from falaj.monitor.late_labels import join_labels
from falaj.oip.grpc_messages import INFER_REQUEST
from falaj.oip.protobuf import encode_message
from falaj.serve.drift_counts import DriftCountRow, DriftCounts
from falaj.serve.late_labels import LabelRow
from falaj.serve.sealed_blocks import RowOwner
from tests.gateway.echo import KEY
from tests.gateway.stand_in import REF, Ground, Replica
from tests.gateway.test_doors import until
from tests.infer import models

NAME = "fraud.score"
INFER = f"/v2/models/{NAME}/infer"
X = np.random.default_rng(3).standard_normal((500, 32)).astype(np.float32)
PROFILE = build_profile(
    {f"x[{at}]": X[:, at] for at in range(32)},
    predictions={"y": models.mlp_of(X)[:, 0]},
    tensors={"x": tuple(f"x[{at}]" for at in range(32)), "y": ("y",)},
)
WHOSE = RowOwner("bank", REF, "ae-dubai")
NAMED = ("bank", NAME)


class Real:
    """A replica as a job would start it, which tells what it counted often."""

    revision, host = 1, "127.0.0.1"

    def __init__(self, home: Path, **watch: Any) -> None:
        folder = home / "model"
        models.mlp(folder)
        (folder / PROFILE_FILE).write_bytes(encode_profile(PROFILE))
        counting = {"flush_s": 0.2, "share": 1.0, **watch}
        model = {"name": NAME, "version": "1", "folder": str(folder), "watch": counting}
        (home / "config.json").write_text(json.dumps({"models": [model], "hop": "127.0.0.1:0", "hop_key": KEY}))
        command = [sys.executable, "-m", "falaj.infer", str(home / "config.json")]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.port = int(json.loads(self.child.stdout.readline())["hop"].rpartition(":")[2])

    def end(self) -> int:
        """SIGTERM: it drains."""
        self.child.terminate()
        code = self.child.wait(20)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("watched") / "house", sample=0.0)
    known(made)
    made.replicas = [Replica(made.loop, 2, "a hop without a model")]
    made.add(made.replicas[0])
    made.open()
    until(lambda: 2 in made.gateway.table.routes[NAMED].pools and link(made, 2).client.ready)
    yield made
    made.close()


def known(ground: Ground, revision: int = 1) -> None:
    """The house knows the profile of a revision."""
    baselines = ground.town.house.desks["monitor"].baselines
    baselines.keep(WHOSE, make_baseline(encode_profile(PROFILE), revision, "test", time.time()))


def link(ground: Ground, revision: int) -> UpstreamConnection:
    found: UpstreamConnection = ground.gateway.table.routes[NAMED].pools[revision][0]
    return found


def asks(url: str, headers: Mapping[str, str], rows: int, times: int) -> int:
    """Rows that were answered."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 32], "data": X[:rows].ravel().tolist()}]}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as client:
        for _ in range(times):
            assert client.post(INFER, json=body).status_code == 200
    return rows * times


def rows_in(found: list[DriftCountRow]) -> int:
    return sum(DataTally.from_bytes(row.data, PROFILE).rows for row in found)


def test_what_a_replica_counts_arrives_once_and_its_end_loses_nothing(ground: Ground, tmp_path: Path) -> None:
    real = Real(tmp_path)
    name = ground.add(real)
    sketches = ground.town.house.desks["serve"].sketches
    until(lambda: 1 in ground.gateway.table.routes[NAMED].pools and link(ground, 1).client.ready)
    sent = asks(ground.doors.http, ground.headers(), 5, 20)
    until(lambda: rows_in(sketches.read("bank", REF)) == sent)
    sent += asks(ground.doors.http, ground.headers(), 7, 3)
    assert real.end() == 0  # It drains: what it counted is told first.
    found = sketches.read("bank", REF)
    assert rows_in(found) == sent
    assert {row.replica.partition(".")[0] for row in found} == {name.name}
    assert all(row.revision == 1 and row.profile == hash_profile(PROFILE) and row.at <= row.until for row in found)
    whole = DataTally.from_bytes(found[-1].data, PROFILE)
    assert whole.of(32).sum() == whole.rows
    ground.remove(name)


def test_a_late_label_finds_its_answer_though_no_request_was_kept(ground: Ground, tmp_path: Path) -> None:
    """By HTTP and gRPC, as callers name what they were answered; of the rows, those that were drawn."""
    real = Real(tmp_path)
    name, began = ground.add(real), time.time()
    serve = ground.town.house.desks["serve"]
    until(lambda: 1 in ground.gateway.table.routes[NAMED].pools and link(ground, 1).client.ready)
    asked: dict[str, int] = {}
    with httpx.Client(base_url=ground.doors.http, headers=ground.headers(), trust_env=False, timeout=30) as client:
        for row in range(20):
            given = {"name": "x", "datatype": "FP32", "shape": [1, 32], "data": X[row].tolist()}
            told = client.post(INFER, json={"id": "mine", "inputs": [given]})
            assert (told.status_code, told.json()["id"]) == (200, "mine")
            asked[told.headers["falaj-request"]] = row
    asked |= {_by_grpc(ground, row): row for row in range(20, 24)}
    assert len(asked) == 24
    assert real.end() == 0

    def found() -> dict[str, list[float]]:
        return {id_: said for id_, said, _ in read_drawn_rows(serve, ("bank", REF, 1), PROFILE, (0.0, ()), asked, "")}

    wanted = models.mlp_of(X)[:, 0]
    assert found() == {id_: [pytest.approx(wanted[row], abs=1e-5)] for id_, row in asked.items()}
    labels = [LabelRow(time.time(), id_, "", float(row)) for id_, row in asked.items()]
    serve.labels.append(WHOSE, labels)
    assert not list(serve.journal.read("bank", REF))
    truth = join_labels(serve, "bank", REF, 1, (began, time.time() + 1), PROFILE, "")
    assert sorted(truth.label.tolist()) == list(range(24))
    assert truth.answer == pytest.approx(wanted[truth.label.astype(int)], abs=1e-5)
    assert all(began - 1 < at < time.time() for at in truth.at)  # An id says when.
    ground.remove(name)


def _by_grpc(ground: Ground, row: int) -> str:
    given = {"name": "x", "datatype": "FP32", "shape": [1, 32]}
    asked = {"model_name": NAME, "inputs": [given], "raw_input_contents": [X[row].tobytes()]}
    with grpc.insecure_channel(ground.doors.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        headers = [(key, value) for key, value in ground.headers().items()]
        _, about = call.with_call(encode_message(INFER_REQUEST, asked), metadata=headers, timeout=30)
    return str(dict((*about.initial_metadata(), *about.trailing_metadata()))["falaj-request"])


def _said(**changed: Any) -> dict[str, Any]:
    tally = DataTally(PROFILE)
    tally.add({"x[0]": np.zeros(3)})
    data = base64.b64encode(tally.to_bytes()).decode()
    good = {"life": "0123456789abcdef", "n": 1, "at": 5.0, "until": 6.0, "profile": hash_profile(PROFILE), "data": data}
    return {**good, **changed}


def test_what_is_not_known_waits_and_what_is_no_delta_is_refused(ground: Ground) -> None:
    watching, replica, heard = ground.gateway.watching, ground.replicas[0].server, ground.replicas[0].controls
    to = replica.taker()

    def replica_says(**changed: Any) -> None:
        ground.loop.loop.call_soon_threadsafe(replica.tell, {"tally": _said(**changed)}, to)

    # While the profile of its revision is not known, a delta is neither kept nor refused.
    watching.written([ReceivedDelta(ground.gateway.table.routes[NAMED].route, link(ground, 2), _said(n=1000))])
    known(ground, 2)
    ground.loop.loop.call_soon_threadsafe(lambda: watching.renew(ground.gateway.table.routes))
    until(lambda: any("profile" in said for said in heard))
    assert hash_profile(read_profile(heard[-1]["profile"].encode())) == hash_profile(PROFILE)
    del heard[:]
    for at, changed in enumerate(BAD):
        replica_says(**{"n": at + 1, **changed})
    replica_says(n=2000)
    replica.tell({"tally": 3}, None)
    until(lambda: {"kept": [2000]} in heard and len(heard) == 1 + len(BAD))
    refused = [said["refused"][0] for said in heard if "refused" in said]
    assert refused == [changed.get("n", at + 1) for at, changed in enumerate(BAD)]
    assert [row.number for row in ground.town.house.desks["serve"].sketches.read("bank", REF) if row.revision == 2] == [
        2000
    ]


BAD: tuple[dict[str, Any], ...] = (
    {"life": "../../etc"}, {"life": 7}, {"n": 0}, {"n": -1}, {"n": 1.5}, {"n": True}, {"n": 1 << 60}, {"at": "soon"},
    {"at": 7.0}, {"until": float("inf")}, {"at": -1.0}, {"at": None}, {"profile": "f" * 64}, {"profile": None},
    {"data": "!"}, {"data": "é"}, {"data": base64.b64encode(b"FJT1").decode()},
)  # fmt: skip


def test_nothing_is_acknowledged_that_is_not_kept(ground: Ground) -> None:
    def gone() -> Any:
        raise Unavailable("the disk is full", "make room")

    house = ground.town.house
    baselines, broken = house.desks["monitor"].baselines, DriftCounts(gone, house.ledger)
    watching = DeltaReceiver(baselines.of, broken, ThreadPoolExecutor(1), ground.loop.loop)
    known(ground, 2)
    del (heard := ground.replicas[0].controls)[:]
    came = [ReceivedDelta(ground.gateway.table.routes[NAMED].route, link(ground, 2), _said(n=3000))]
    with pytest.raises(Unavailable):
        watching.written(came)
    ground.gateway.watching.written(came)  # The next gateway that hears of it can.
    until(lambda: heard)
    assert heard == [{"kept": [3000]}]


class Process:
    """A gateway that can be killed."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-m", "falaj", "--at", str(home), "gateway", "--listen", "127.0.0.1:0"]
        command += ["--grpc", "127.0.0.1:0"]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.said = self.child.stdout.readline()

    def kill(self) -> None:
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.wait(10)
        assert self.child.stdout is not None
        self.child.stdout.close()


@pytest.mark.slow
def test_gateways_that_are_killed_count_nothing_twice_and_lose_nothing(tmp_path: Path) -> None:
    real = Real(tmp_path, flush_s=0.1)
    ground = Ground(tmp_path / "house", sample=0.0)
    known(ground)
    ground.add(real)
    sketches, answered = ground.town.house.desks["serve"].sketches, 0
    try:
        for life in range(5):
            gateway = Process(tmp_path / "house")
            url = next(word for word in gateway.said.split() if word.startswith("http"))
            # It is killed at another moment of its second each time.
            answered += asks(url, ground.headers(), 5, 300 + 100 * life)
            gateway.kill()
        ground.open()

        def seen() -> int:
            return sum(DataTally.from_bytes(row.data, PROFILE).seen for row in sketches.read("bank", REF))

        until(lambda: seen() == answered)
        assert real.end() == 0
        numbers = [row.number for row in sketches.read("bank", REF)]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
        assert seen() == answered
    finally:
        if real.child.poll() is None:
            real.end()
        ground.close()
