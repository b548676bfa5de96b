"""Tracking: the real MLflow client, in several processes, against us and against `mlflow server`, in the same run.

Run by `make bench NAME=track`; `python bench/track.py sqlite search` runs one act of one half. Both sides keep their
runs in the same kind of store, made durable at every answer, and hold the same 10,000 runs when they are searched.
Machines are noisy, so both have a turn in every round: throughput is the median of the rounds, p99 is of all calls.
Nothing is measured before both servers have come to rest: `mlflow server` answers long before all its processes have
started, and would take the processors from whoever is measured first. The clients share the machine's processors with
both; what they reach against a server that does nothing at all is told as the limit, and is no bar; nor is what a call
costs each server in processor time, with its database. One client is what somebody who trains sees; so many that they
fill the machine by themselves is the hardest case, and both are bars. A table for people, then one last line of JSON
with every bar. ROUNDS, SECONDS, RUNS and CLIENTS (such as 1,2,8) make it smaller.

`mlflow server` as its users start it keeps back the body of each answer until its client has acknowledged the head,
some 40 ms on Linux: its workers share a socket on which asyncio sets no TCP_NODELAY. That is part of what its users
wait for, and so of the bars. NODELAY=1 sets it for them, and shows what is left of each ratio without that.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scratch import folder
from serve_load import spent_s
from track_limit import limit

from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.servers.peers import MLFLOW, peer
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_ports

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = float(os.environ.get("SECONDS", "6"))
RUNS = int(os.environ.get("RUNS", "10000"))
CLIENTS = [int(num) for num in os.environ.get("CLIENTS", "1,8").split(",")]
NODELAY = bool(os.environ.get("NODELAY"))
ACTS = ("log_metric", "log_batch", "search")
FASTER, QUICKER = 5.0, 1 / 3
BARS: dict[str, dict[str, Any]] = {}
LIMITS: dict[str, dict[str, float]] = {}
CPU_MS: dict[str, dict[str, float]] = {}
REST, REST_S = 0.2, 60.0
"""A server that takes less of a processor than that, all of a second, has come to rest; so long it is waited for."""
# Users' Pythons keep compiled modules; ours must too, or every start measures the compiler.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

CLIENT = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
act, seconds, experiment = sys.argv[1], float(sys.argv[2]), sys.argv[3]
client = MlflowClient()
run = client.create_run("0").info.run_id
WHERE = [
    ("metrics.loss < 0.3 and params.model = 'tree'", ["metrics.loss ASC"]),
    ("tags.team = 'risk' and metrics.acc > 0.8", ["attributes.start_time DESC"]),
    ("params.lr = '0.1' and metrics.loss > 0.9", []),
    ("attributes.status = 'RUNNING' and metrics.acc > 0.99", ["metrics.acc DESC"]),
]
def log_metric(n):
    client.log_metric(run, "loss", 1 / (n + 1), step=n)
def log_batch(n):
    now = int(time.time() * 1000)
    client.log_batch(run, [Metric(f"m{k}", k / 7 + n, now, n) for k in range(50)], [Param(f"p{n}", str(n))])
def search(n):
    where, order = WHERE[n % len(WHERE)]
    found = client.search_runs([experiment], where, order_by=order, max_results=20)
    assert 0 < len(found) <= 20, where
call = {"log_metric": log_metric, "log_batch": log_batch, "search": search}[act]
for n in range(8):
    call(n)
print("ready", flush=True)
sys.stdin.readline()
took, n, end = [], 8, time.perf_counter() + seconds
while time.perf_counter() < end:
    began = time.perf_counter()
    call(n)
    took.append(time.perf_counter() - began)
    n += 1
print(json.dumps(took))
"""
AT_ONCE = """
import asyncio.base_events, socket
def at_once(sock):
    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
asyncio.base_events._set_nodelay = at_once
"""
FILL = """
import json, sys, warnings
warnings.simplefilter("ignore")
from sqlalchemy import insert
from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
store = SqlAlchemyStore(sys.argv[1], sys.argv[2])
experiment = int(store.create_experiment("searched"))
rows = {SqlRun: [], SqlMetric: [], SqlLatestMetric: [], SqlParam: [], SqlTag: []}
for line in sys.stdin:
    run = json.loads(line)
    who = {"run_uuid": run["id"]}
    began = int(run["started"] * 1000)
    rows[SqlRun].append({
        **who, "name": run["title"], "source_type": "UNKNOWN", "source_name": "", "entry_point_name": "",
        "user_id": "amal", "status": "RUNNING", "start_time": began, "source_version": "", "lifecycle_stage": "active",
        "artifact_uri": f"mlflow-artifacts:/{experiment}/{run['id']}/artifacts", "experiment_id": experiment,
    })
    for key, value in run["metrics"].items():
        point = {**who, "key": key, "value": value, "timestamp": began, "step": 0, "is_nan": False}
        rows[SqlMetric].append(point)
        rows[SqlLatestMetric].append(point)
    rows[SqlParam] += [{**who, "key": key, "value": value} for key, value in run["params"].items()]
    rows[SqlTag] += [{**who, "key": key, "value": value} for key, value in run["tags"].items()]
with store.ManagedSessionMaker() as session:
    for table, found in rows.items():
        session.execute(insert(table), found)
print(experiment)
"""


def main() -> None:
    """Both halves in turn, or the one that is named."""
    chosen = [name for name in sys.argv[1:] if name not in ACTS]
    print(f"  {'bar':<26} {'ours':<38} {'mlflow server':<38} ratio")
    for half in (sqlite, postgres):
        if not chosen or half.__name__ in chosen:
            half()
    print()
    missed = [name for name, found in BARS.items() if not found["ok"]]
    print(f"{len(BARS) - len(missed)} of {len(BARS)} bars met" + (f"; missed: {', '.join(missed)}" if missed else ""))
    print(json.dumps({"bench": "track", "nodelay": NODELAY, "bars": BARS, "limits": LIMITS, "cpu_ms_a_call": CPU_MS}))


def sqlite() -> None:
    """Both on SQLite files."""
    program = peer("mlflow", *MLFLOW)
    with folder() as home, us(home / "ours", {}) as ours, them(program, home, f"sqlite:///{home}/mlflow.db") as theirs:
        compare("sqlite", program, ours, theirs)


def postgres() -> None:
    """Both on one PostgreSQL, each in a database of its own."""
    program = peer("mlflow-postgres", *MLFLOW, "psycopg[binary]")
    with folder() as home, PostgresServer(fsync="on") as server:
        store = {"FALAJ_STORE": server.create_database()}
        with us(home / "ours", store) as ours, them(program, home, server.create_database()) as theirs:
            both = [Side(side.env, (*side.pids, server.pid)) for side in (ours, theirs)]
            compare("postgres", program, *both)


class Side(NamedTuple):
    """One server, as it is measured."""

    env: dict[str, str]
    """What a client needs in its environment to reach it."""
    pids: tuple[int, ...] = ()
    """The processes that it began with, and its database."""


class Shot(NamedTuple):
    """One round of one side."""

    took: list[float]
    cpu_s: float


def compare(store: str, program: Path, ours: Side, theirs: Side) -> None:
    """Every act, both sides in every round."""
    rest(*ours.pids, *theirs.pids)
    for act in [act for act in ACTS if act in sys.argv] or ACTS:
        for num in CLIENTS:
            _compare(f"{act}{{}}_{store}{'' if num == 8 else f'_{num}'}", program, ours, theirs, act, num)


def _compare(name: str, program: Path, ours: Side, theirs: Side, act: str, num: int) -> None:
    """One act by so many clients; bars of eight have a plain name."""
    us_, them_ = [], []
    for _ in range(ROUNDS):
        us_.append(load(program, ours, act, num))
        them_.append(load(program, theirs, act, num))
    (rate, late), (their_rate, their_late) = figures(us_), figures(them_)
    cost = CPU_MS[name.format("")] = {"ours": cost_ms(us_), "peer": cost_ms(them_)}
    told = {"ours": said(rate, late), "peer": said(their_rate, their_late)}
    bar(name.format("_x"), rate / their_rate, FASTER, at_least=True, **told)
    bar(name.format("_p99"), late / their_late, QUICKER, at_least=False, **told)
    told = {side: f"{found:.2f} ms of processor a call" for side, found in cost.items()}
    print(f"  {name.format('_cpu'):<26} {told['ours']:<38} {told['peer']:<38} {cost['ours'] / cost['peer']:.2f}")
    if act != "search":  # which looks at what it is given
        with limit() as nothing:
            best = figures([load(program, Side(nothing), act, num)])
        LIMITS[name.format("")] = {
            "rate": round(best[0], 1),
            "p99_ms": round(best[1], 1),
            "of_peer": round(best[0] / their_rate, 2),
        }
        told_limit = f"by a server that does nothing: {best[0] / their_rate:.2f} times the peer"
        print(f"  {name.format('_limit'):<26} {said(*best):<38} {told_limit}", flush=True)


def figures(side: list[Shot]) -> tuple[float, float]:
    """Calls in a second, the median of the rounds, and p99 of all calls in milliseconds."""
    rate = statistics.median(len(shot.took) / SECONDS for shot in side)
    return rate, statistics.quantiles([t for shot in side for t in shot.took], n=100)[98] * 1e3


def cost_ms(side: list[Shot]) -> float:
    """Milliseconds of a processor that a call cost the server and its database."""
    return round(sum(shot.cpu_s for shot in side) / sum(len(shot.took) for shot in side) * 1e3, 3)


def said(rate: float, late: float) -> str:
    """The same for people."""
    return f"{rate:.0f}/s, p99 {late:.1f} ms"


def load(program: Path, side: Side, act: str, num: int) -> Shot:
    """Seconds of every call that so many processes made in SECONDS, all begun at one sign."""
    env = {**{key: value for key, value in os.environ.items() if not key.startswith("MLFLOW")}, **side.env}
    env["MLFLOW_DISABLE_TELEMETRY"] = "true"  # its thread and its clients' meet in the environment, and some calls fail
    command = [str(program / "python"), "-c", CLIENT, act, str(SECONDS), side.env["EXPERIMENT"]]
    clients = [
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(num)
    ]
    for client in clients:
        if client.stdout is None or client.stdout.readline().strip() != "ready":
            raise SystemExit(f"a client of {side.env['MLFLOW_TRACKING_URI']} did not come up for {act}")
    before = spent_s(side.pids)
    said = [pool.result() for pool in _together(clients)]
    spent = spent_s(side.pids) - before
    if any(client.returncode for client in clients):
        raise SystemExit(f"a client of {side.env['MLFLOW_TRACKING_URI']} failed in {act}")
    return Shot([took for text in said for took in json.loads(text)], spent)


def _together(clients: list[subprocess.Popen[str]]) -> list[Any]:
    with ThreadPoolExecutor(len(clients)) as pool:
        return [pool.submit(lambda one=client: one.communicate("go\n")[0]) for client in clients]


@contextlib.contextmanager
def us(home: Path, env: dict[str, str]) -> Iterator[Side]:
    """`falaj up`, with a tenant, somebody who works there, and the runs to search."""
    free = {"FALAJ_LIMITS_REQUESTS_PER_S": "1e6", "FALAJ_LIMITS_BURST": "1000000"}
    with Replica(home, {**env, **free}) as server:
        boss = enroll_tenant(server.as_(), "bank", "fatima")
        token = enroll(server.as_(boss), "amal", ("ml-engineer",), jurisdiction="AE")
        here = server.as_(token)
        searched = here.track.create("experiment:bench/searched", title="searched")

        def fill(run: dict[str, Any]) -> None:
            made = here.track.start(
                searched.ref,
                title=run["title"],
                started=run["started"],
                params=run["params"],
                tags=run["tags"],
            )
            here.track.log(
                made.ref, metrics=tuple({"key": k, "value": v, "at": run["started"]} for k, v in run["metrics"].items())
            )

        first, *rest = runs()
        fill(first)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fill, rest))
        env = {"MLFLOW_TRACKING_URI": server.url, "MLFLOW_TRACKING_TOKEN": token, "EXPERIMENT": searched.id}
        yield Side(env, (server.process.pid,))


@contextlib.contextmanager
def them(program: Path, home: Path, store: str) -> Iterator[Side]:
    """`mlflow server` as its users start it; its runs are written straight into its tables, which is quicker."""
    lines = "\n".join(json.dumps(run) for run in runs())
    command = [str(program / "python"), "-c", FILL, store, str(home / "artifacts")]
    filled = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    port = next(free_ports())
    command = [str(program / "mlflow"), "server", "--backend-store-uri", store, "--port", str(port)]
    command += ["--artifacts-destination", str(home / "artifacts")]
    env = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}
    if NODELAY:
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(AT_ONCE)
        env["PYTHONPATH"] = str(home / "site")
    with (home / "mlflow.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: urllib.request.urlopen(f"{url}/health", timeout=2).status == 200)  # noqa: S310 - our own peer
        yield Side({"MLFLOW_TRACKING_URI": url, "EXPERIMENT": filled.stdout.split()[-1]}, (server.pid,))
    finally:
        server.terminate()
        server.wait(30)


def runs() -> Iterator[dict[str, Any]]:
    """The runs to search, the same for both."""
    for n in range(RUNS):
        yield {
            "id": f"{n:032x}",
            "title": f"run-{n}",
            "started": 1_700_000_000.0 + n,
            "metrics": {
                "loss": n * 7919 % 10_007 / 10_007, "acc": n * 6151 % 9_973 / 9_973, "a": n * 0.5, "b": 1.0, "c": -0.1,
            },
            "params": {
                "model": ("tree", "net", "linear")[n % 3], "lr": ("0.1", "0.01")[n % 2], "p1": f"{n}", "p2": "x",
            },
            "tags": {"team": ("risk", "fraud", "credit", "cards")[n % 4], "note": f"run {n}", "mlflow.user": "amal"},
        }  # fmt: skip


def rest(*pids: int) -> None:
    """Wait until these processes, and all below them, have little to do."""
    end, busy = time.monotonic() + REST_S, 1.0
    while busy > REST and time.monotonic() < end:
        before, began = spent_s(pids), time.monotonic()
        time.sleep(1)
        busy = (spent_s(pids) - before) / (time.monotonic() - began)


def until(works: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until it does."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if works():
                return
        if time.monotonic() > end:
            raise SystemExit("mlflow server did not come up")
        time.sleep(0.2)


def bar(name: str, value: float, limit: float, *, at_least: bool, ours: str, peer: str) -> None:
    """Note one bar: its value, its limit and both figures it came from."""
    ok = value >= limit if at_least else value <= limit
    BARS[name] = {"value": round(value, 4), "bar": round(limit, 4), "ok": ok}
    verdict = f"{value:.2f} ({'≥' if at_least else '≤'} {limit:.2f}) {'ok' if ok else 'MISSED'}"
    print(f"  {name:<26} {ours:<38} {peer:<38} {verdict}", flush=True)


if __name__ == "__main__":
    main()
