"""The same runs in `mlflow server`, and where its pages are: the other side of the console's bench."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from console_seed import CURVE, METRICS, POINTS, RUNS, curve, runs  # noqa: E402

from tests.servers.peers import MLFLOW, peer  # noqa: E402
from tests.servers.process import COMPONENTS, free_ports  # noqa: E402

# Its own store makes the tables; rows of runs go straight into them, as fast as SQLite takes them.
FILL = """
import json, sqlite3, sys, warnings
warnings.simplefilter("ignore")
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
file, artifacts = sys.argv[1:3]
store = SqlAlchemyStore(f"sqlite:///{file}", artifacts)
experiment = int(store.create_experiment("bulk"))
store.engine.dispose()
base = sqlite3.connect(file)
base.execute("PRAGMA synchronous = OFF")
POINT = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)"

def run(one):
    began, ended = int(one["started"] * 1000), int(one["started"] * 1000) + 30000
    base.execute(
        "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time,"
        " end_time, source_version, lifecycle_stage, artifact_uri, experiment_id)"
        " VALUES (?, ?, 'UNKNOWN', '', '', 'amal', 'FINISHED', ?, ?, '', 'active', ?, ?)",
        (one["id"], one["title"], began, ended, f"mlflow-artifacts:/{experiment}/{one['id']}/artifacts", experiment))
    rows = [(key, value, began, one["id"], 0) for key, value in one["metrics"].items()]
    base.executemany(f"INSERT INTO metrics {POINT}", rows)
    base.executemany(f"INSERT INTO latest_metrics {POINT}", rows)
    words = [(key, value, one["id"]) for key, value in one["params"].items()]
    base.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", words)
    tags = [(key, value, one["id"]) for key, value in {**one["tags"], "mlflow.runName": one["title"]}.items()]
    base.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", tags)

for line in sys.stdin:
    said = json.loads(line)
    if isinstance(said, dict):
        run(said)
        last = said["id"]
    else:
        rows = [("curve", v, 1690000000000 + s * 1000, last, s) for s, v in said]
        base.executemany(f"INSERT INTO metrics {POINT}", rows)
        newest = ("curve", said[-1][1], 1690000000000 + said[-1][0] * 1000, last, said[-1][0])
        base.execute("DELETE FROM latest_metrics WHERE run_uuid = ? AND key = 'curve'", (last,))
        base.execute(f"INSERT INTO latest_metrics {POINT}", newest)
base.commit()
base.execute("ANALYZE")
base.close()
print(experiment)
"""


def filled() -> tuple[Path, str]:
    """The folder with its database, and the id of the experiment; made when it is not there."""
    home = COMPONENTS / "bench-console" / f"mlflow-{RUNS}-{METRICS}-{POINTS}"
    if not (home / "ready").is_file():
        home.mkdir(parents=True, exist_ok=True)
        (home / "mlflow.db").unlink(missing_ok=True)
        began = time.perf_counter()
        command = [
            str(peer("mlflow", *MLFLOW) / "python"),
            "-c",
            FILL,
            str(home / "mlflow.db"),
            str(home / "artifacts"),
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as filling:
            assert filling.stdin is not None
            assert filling.stdout is not None
            for run in _every():
                filling.stdin.write(json.dumps(run) + "\n")
            filling.stdin.close()
            said = filling.stdout.read().split()
        if filling.returncode:
            raise SystemExit("MLflow's database was not filled")
        (home / "ready").write_text(said[-1])
        print(f"    made mlflow's runs {time.perf_counter() - began:8.1f} s", flush=True)
    return home, (home / "ready").read_text().strip()


def _every() -> Iterator[object]:
    yield from runs()
    yield {"id": CURVE, "title": "the long one", "started": 1_690_000_000.0, "metrics": {}, "params": {}, "tags": {}}
    some: list[tuple[int, float]] = []
    for point in curve():
        some.append(point)
        if len(some) == 50_000:
            yield some
            some = []
    if some:
        yield some


@contextlib.contextmanager
def mlflow_server() -> Iterator[tuple[str, str]]:
    """`mlflow server` as its users start it, on those runs: its address, and the experiment."""
    home, experiment = filled()
    program, port = peer("mlflow", *MLFLOW), next(free_ports())
    command = [str(program / "mlflow"), "server", "--backend-store-uri", f"sqlite:///{home}/mlflow.db"]
    # One worker: its own watch over several ends those that a busy machine keeps waiting.
    command += ["--port", str(port), "--workers", "1", "--artifacts-destination", str(home / "artifacts")]
    env = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _until_up(url, home / "log")
        yield url, experiment
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # it leaves others behind when it is only asked to end
        server.wait()


def _until_up(url: str, log: Path) -> None:
    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(f"{url}/health", timeout=2).status == 200:  # noqa: S310 - our own peer
                return
        if time.monotonic() > end:
            raise SystemExit(f"mlflow server did not come up\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def addresses(url: str, experiment: str, some: list[str], where: str) -> dict[str, str]:
    """Its addresses: the list, a filter, a comparison, a curve."""
    place = f"{url}/#/experiments/{experiment}"
    listed = quote(json.dumps(some))
    return {
        "list": f"{place}/runs",
        "filter": f"{place}/runs?searchFilter={quote(where)}",
        "compare": f"{url}/#/compare-runs?runs={listed}&experiments={quote(json.dumps([experiment]))}",
        "curve": f"{place}/runs/{CURVE}/model-metrics",
    }
