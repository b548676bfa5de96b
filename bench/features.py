"""Features: training sets, online reads, filling the online store; beside Feast and what one would write by hand.

    make bench NAME=features             everything; about 20 minutes on two cores
    python bench/features.py online      one part: offline, large, online, http, materialise, sealing, functions, truth
    --small                              a quick look at a twentieth of the data; its figures mean little
    --full                               the part `large` at 100M rows in place of 20M; needs 15 GB of disk

Feast lives in an environment of its own. Every way is a program of its own, with CPU seconds counted after its imports,
its children included; sides take turns in every round, and figures are medians of rounds. Of reads, too, bars are
held to the median; the call that 10 % beat is printed beside it. A table for people, then one last line of JSON with
every bar, missed ones too.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bars
from bars import bar
from features_ground import KEYS, RIGHT, ROUNDS, SMALL, Cost, Turns, every_name, measured, median, together
from features_house import served
from scratch import folder

from tests.servers.peers import peer
from tests.servers.process import free_ports, listens, wait_until
from tests.servers.redis import RedisServer

FEAST = ("feast[duckdb,redis]==0.67.0", "hiredis")
US = sys.executable
# Users' Pythons keep compiled modules; ours must too, or every start measures the compiler.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def main() -> None:
    """The parts that were named, or all."""
    bars.told("features", [offline, large, online, http, materialise, sealing, functions, truth], small=SMALL)


def offline() -> None:
    """A training set of 1M labels and three views over 10M rows."""
    feast = peer("feast", *FEAST) / "python"
    ways: dict[str, tuple[Any, ...]] = {
        "ours, by the platform": (US, "features_house.py", "history"),
        "ours, the engine alone": (US, "features_offline.py", "ours_history"),
        "ours, foreign Parquet": (US, "features_offline.py", "ours_foreign"),
        "polars": (US, "features_offline.py", "polars"),
        "duckdb": (US, "features_offline.py", "duckdb"),
        "feast duckdb": (feast, "features_feast.py", "history", "duckdb", "1000000"),
    }
    with folder() as at:
        measured(US, "features_ground.py", str(at))
        told("rows into segments, once", measured(US, "features_offline.py", "ours_rows", str(at)))
        told("ingested by the platform, once", measured(US, "features_house.py", "prepare", str(at)))
        costs: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (python, script, act, *rest) in ways.items():
                costs[name].append(measured(python, script, act, str(at), *rest))
        dask = measured(feast, "features_feast.py", "history", str(at), "dask", "100000")
    found = {name: median(each) for name, each in costs.items()}
    right = found["duckdb"].said["sum"]
    for name, cost in found.items():
        told(name, cost, "exact" if all(one.said["sum"] == right for one in costs[name]) else "WRONG")
    lost = 1 - dask.said["num_rows"] / min(100_000, found["duckdb"].said["num_rows"])
    told("feast dask, 100k labels", dask, f"{lost:.1%} of label rows vanished")
    ours, foreign, theirs = found["ours, by the platform"], found["ours, foreign Parquet"], found["feast duckdb"]
    bar("offline_cpu_vs_feast_duckdb", ours.cpu_s / theirs.cpu_s, "<=", 1 / 6)
    bar("offline_rss_gib", ours.peak_mib / 1024, "<=", 1)
    exact = all(one.said["sum"] == right for name in costs if name.startswith("ours") for one in costs[name])
    bar("offline_exact", float(exact), "==", 1)
    bar("foreign_vs_polars", foreign.cpu_s / found["polars"].cpu_s, "<=", 1.0)


def large() -> None:
    """Rows that do not fit: 20M unless all 100M are asked for."""
    count = 100_000_000 if "--full" in sys.argv else 1_000_000 if SMALL else 20_000_000
    with folder() as at:
        measured(US, "features_ground.py", str(at))
        cost = measured(US, "features_offline.py", "ours_large", str(at), str(count))
    told(
        f"{count:,} rows written and joined", cost, f"{cost.said['found']:,} of {cost.said['num_rows']:,} labels found"
    )
    note = f"at {count:,} rows" + ("" if "--full" in sys.argv else "; --full does 100,000,000")
    bar("out_of_core_rss_gib", cost.peak_mib / 1024, "<=", 1, note)


def online() -> None:
    """Ten entities, twenty features, everything by name."""
    feast, count = peer("feast", *FEAST) / "python", "2000" if SMALL else "10000"
    with folder() as at, RedisServer() as redis:
        stores = {"sqlite": "sqlite", "redis": f"127.0.0.1:{redis.port}"}
        for name, where in stores.items():
            (at / name).mkdir()
            measured(feast, "features_feast.py", "materialise", str(at / name), where, count)
        ours = {"lmdb": (str(at / "ours"), f"lmdb:{at}/lmdb"), "redis": (str(at / "shared"), redis.url)}
        for where in ours.values():
            measured(US, "features_house.py", "fill", *where, "10000")
        sides = {
            "ours, embedded": Turns(US, "features_house.py", "read", *ours["lmdb"]),
            "raw LMDB": Turns(US, "features_online.py", "floor_lmdb", str(at / "floor")),
            "feast sqlite": Turns(feast, "features_feast.py", "read", str(at / "sqlite"), "sqlite"),
            "ours, redis": Turns(US, "features_house.py", "read", *ours["redis"]),
            "raw MGET": Turns(US, "features_online.py", "floor_redis", str(redis.port)),
            "feast redis": Turns(feast, "features_feast.py", "read", str(at / "redis"), stores["redis"]),
        }
        together(list(sides.values()))
    for name, side in sides.items():
        print(f"  {name:<34} {side}", flush=True)
    took = {name: side.median_us for name, side in sides.items()}
    bar("online_embedded_vs_feast_sqlite", took["feast sqlite"] / took["ours, embedded"], ">=", 40)
    bar("online_redis_vs_feast_redis", took["feast redis"] / took["ours, redis"], ">=", 10)
    bar("online_redis_vs_mget", took["ours, redis"] / took["raw MGET"], "<=", 1.5)


def http() -> None:
    """The same over HTTP: one process of each, one connection."""
    feast = peer("feast", *FEAST)
    wanted = {"features": [f"wide:{name}" for name in every_name()], "entities": KEYS}
    with folder() as at:
        measured(feast / "python", "features_feast.py", "materialise", str(at), "sqlite", "2000" if SMALL else "10000")
        with feast_server(feast, at) as port, served(at / "ours", 10_000) as (own, token):
            client = US, "features_online.py", "http_read"
            asked = json.dumps({"service": "service:bench/wide", "keys": KEYS})
            calls = {
                "ours": (*client, own, "/v1/features/read", asked, token),
                "feast serve": (*client, port, "/get-online-features", json.dumps(wanted)),
            }
            sides = {name: Turns(*call) for name, call in calls.items()}
            together(list(sides.values()))
            crowds = {name: at_once(*call) for name, call in calls.items()}
    for name, side in sides.items():
        print(f"  {name:<34} {side}; {crowds[name]:,.0f} a second for eight at once", flush=True)
    bar("http_vs_feast_server", sides["feast serve"].median_us / sides["ours"].median_us, ">=", 8)


def at_once(*program: str) -> float:
    """Answers a second when eight clients ask together."""
    clients = [Turns(*program) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2 if SMALL else 10):
            list(pool.map(Turns.go, clients))
    return sum(len(client.close().took) / sum(client.took) for client in clients)


@contextlib.contextmanager
def feast_server(feast: Path, at: Path) -> Iterator[str]:
    """Its own server, one worker; by default that is replaced every 1000 requests, which would be measured, too."""
    port = next(free_ports())
    command = [str(feast / "feast"), "-c", str(at), "serve", "-p", str(port), "-w", "1", "--no-access-log"]
    command += ["--max-requests", "1000000000", "--keep-alive-timeout", "600"]
    with (at / "feast.log").open("w") as log:
        env = os.environ | {"FEAST_USAGE": "False"}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        wait_until(lambda: quietly(listens, port), 120)
        yield str(port)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def quietly(act: Callable[[int], bool], port: int) -> bool:
    """False where it does not answer yet."""
    with contextlib.suppress(OSError):
        return act(port)
    return False


def materialise() -> None:
    """An online store filled: a million rows by us, a hundred thousand by Feast, compared row by row."""
    feast = peer("feast", *FEAST) / "python"
    few, many = (2_000, 50_000) if SMALL else (100_000, 1_000_000)
    ours, theirs = [], []
    for turn in range(ROUNDS):
        with folder() as at:
            ours.append(measured(US, "features_house.py", "fill", str(at / "ours"), f"lmdb:{at}/lmdb", str(many)))
            if turn == 0:  # minutes for each
                theirs.append(measured(feast, "features_feast.py", "materialise", str(at), "sqlite", str(few)))
    us, them = median(ours), median(theirs)
    told(f"ours, embedded, {many:,} rows", us, f"{us.cpu_s / many * 1e6:.2f} CPU µs a row")
    told(f"feast sqlite, {few:,} rows", them, f"{them.cpu_s / few * 1e6:.2f} CPU µs a row")
    bar("materialise_vs_feast", them.cpu_s / few / (us.cpu_s / many), ">=", 5)


def sealing() -> None:
    """Rows of people under keys of their own."""
    took = measured(US, "features_online.py", "sealing").said["took"]
    seal, unseal = (statistics.median(column) for column in zip(*took, strict=True))
    bar("sealing_us_per_row", max(seal, unseal), "<=", 0.5, f"seal {seal:.2f}, open {unseal:.2f}; ten rows a person")


def functions() -> None:
    """A Python function of a service in its isolated process."""
    said = measured(US, "features_online.py", "functions").said
    bar("function_call_us", said["call_us"], "<=", 200, f"its process starts in {said['started_s']:.2f} s")


def truth() -> None:
    """Late, restated, past its TTL, from the future: four cases online, and the same four offline as of now."""
    feast = peer("feast", *FEAST) / "python"
    with RedisServer() as redis:
        for store, where, engine in (("embedded", "sqlite", "dask"), ("redis", f"127.0.0.1:{redis.port}", "duckdb")):
            with folder() as at:
                theirs = measured(feast, "features_feast.py", "truth", str(at), where, engine).said
                url = redis.url if store == "redis" else f"lmdb:{at}/ours"
                mine = measured(US, "features_house.py", "truth", str(at), url).said
            name = f"feast {'redis' if store == 'redis' else 'sqlite'} + {engine}"
            note = f"of 8; {name} {wrong(theirs)} (online {theirs['online']}, offline {theirs['offline']})"
            bar(f"wrong_cells_{store}", wrong(mine), "==", 0, note)


def wrong(cells: dict[str, list[Any]]) -> int:
    """How many of eight are not what they should be."""
    return sum(got != right for side in ("online", "offline") for got, right in zip(cells[side], RIGHT, strict=True))


def told(name: str, cost: Cost, note: str = "") -> None:
    """One line of a table."""
    print(
        f"  {name:<34} {cost.cpu_s:8.2f} CPU s {cost.wall_s:8.1f} s wall {cost.peak_mib:8,.0f} MiB  {note}", flush=True
    )


if __name__ == "__main__":
    main()
