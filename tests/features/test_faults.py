"""Killed anywhere: filling, pushing, the store itself. Nothing acknowledged is lost, and it ends the same."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import falaj
from tests.features import feeding
from tests.features.house import same_as_history
from tests.servers.process import wait_until
from tests.servers.redis import RedisCluster, RedisServer

IDS = list(range(40))


def house(folder: Path, **overrides: Any) -> Any:
    """A platform with the views defined and a source of some chapters."""
    here = falaj.connect(str(folder / "house"), **overrides)
    (folder / "features.py").write_text(feeding.DEFINITIONS)
    data, rng = folder / "rows", np.random.default_rng(3)
    data.mkdir(exist_ok=True)
    for part in range(3):
        count = 3000
        moments = pa.array(
            round(time.time() * 1e6) - rng.integers(1, 40 * 86400 * 10**6, count), pa.timestamp("us", "UTC")
        )
        table = {
            "id": rng.integers(0, 40, count),
            "at": moments,
            "x": rng.random(count),
            "t": [f"{at}" for at in range(count)],
        }
        pq.write_table(pa.table(table), data / f"{part}.parquet")
        here.catalog.publish("dataset:f/rows", str(data))
        here.features.apply(str(folder / "features.py"))
        here.features.ingest("view:f/plain")
        here.features.ingest("view:f/sums")
    return here


def as_in_history(here: Any) -> dict[str, Any]:
    """The values that are the same online and in history."""
    return same_as_history(here, here.online(), "service:f/all", {"id": IDS}).columns


def child(folder: Path, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.features.feeding", str(folder / "house"), what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_while_it_fills(tmp_path: Path) -> None:
    here = house(tmp_path)
    here.close()
    rng, done, kills = random.Random(1), False, 0
    for _ in range(60):
        process = child(tmp_path, "fill")
        try:
            done = process.wait(timeout=1.0 + rng.random() * 0.5 + kills * 0.1) == 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        assert process.stdout is not None
        process.stdout.close()
        if done:
            break
    assert done
    here = falaj.connect(str(tmp_path / "house"))
    as_in_history(here)
    here.close()


def test_killed_while_it_pushes(tmp_path: Path) -> None:
    house(tmp_path).close()
    told = 0
    for _ in range(4):
        process = child(tmp_path, "push")
        assert process.stdout is not None
        for _ in range(random.Random(told).randrange(3, 12)):
            process.stdout.readline()
            told += 1
        process.send_signal(signal.SIGKILL)
        told += len(process.stdout.read().splitlines())
        process.wait()
        process.stdout.close()
    here = falaj.connect(str(tmp_path / "house"))
    here.features.materialize("service:f/all")
    counts = as_in_history(here)["count_30d"]
    assert sum(one or 0 for one in counts) >= told, "a push that was acknowledged is lost"
    here.close()


def test_redis_dies_and_comes_back_empty(tmp_path: Path) -> None:
    with RedisServer() as server:
        here = house(tmp_path, online=f"{server.url}?wait_s=0.3")
        here.features.materialize("service:f/all")
        server.kill()
        rows = [{"id": 1, "at": round(time.time() * 1e6), "x": 5.0}]
        assert not here.features.push("view:f/pushed", rows).online, "nobody was told that it is not online"
        server.start()
        here.close()
        here = falaj.connect(str(tmp_path / "house"), online=server.url)
        answer = here.features.read("service:f/all", {"id": [1]})
        assert set(answer.statuses["x"]) == {"NOT_FOUND"}
        here.features.materialize("service:f/all")
        assert as_in_history(here)["count_30d"][1] == 1
        here.close()


def test_a_server_of_a_cluster_dies_and_comes_back_empty(tmp_path: Path) -> None:
    with RedisCluster() as cluster:
        here = house(tmp_path, online=f"{cluster.url}&wait_s=1")
        here.features.materialize("service:f/all")
        whole = as_in_history(here)
        cluster.nodes[1].kill()
        cluster.nodes[1].start()
        wait_until(cluster.whole, 60)
        assert here.features.read("service:f/all", {"id": IDS}).columns["x"] != whole["x"]
        here.features.materialize("service:f/all")
        assert as_in_history(here)["x"] == whole["x"]
        here.close()


@pytest.mark.parametrize("again", [1, 3])
def test_a_named_push_counts_once(tmp_path: Path, again: int) -> None:
    here = house(tmp_path)
    columns = {"id": [3], "at": [round(time.time() * 1e6)], "x": [2.0]}
    house_, actor = here.house, here.actor
    for _ in range(again):
        ctx = house_.context(actor, request_id="push-7")
        done = house_.call("features", "append", ctx, {"view": falaj.Ref.parse("view:f/pushed"), "columns": columns})
        assert done.taken == 1
    assert here.features.read("service:f/all", {"id": [3]}).columns["count_30d"] == [1]
    here.close()
