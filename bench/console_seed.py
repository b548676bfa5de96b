"""The platform that the console is measured on, made once and kept: 10,000 runs of 200 metrics, a curve of a million
points, 1,000 datasets, a million events, 100 endpoints, beside the whole life of the tests' platform."""

import hashlib
import inspect
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from falaj.core.context import CallContext  # noqa: E402
from falaj.core.ref import Ref  # noqa: E402
from falaj.serve.request_counts import CountRow, latency_bucket  # noqa: E402
from falaj.server import LocalClient, Server, load_settings  # noqa: E402
from falaj.track.records import Metric  # noqa: E402
from tests.catalog.goods import put  # noqa: E402
from tests.console import ground, hostile, life, life_rooms, life_sweeps  # noqa: E402
from tests.servers.process import COMPONENTS  # noqa: E402

RUNS = int(os.environ.get("RUNS", "10000"))
METRICS = int(os.environ.get("METRICS", "200"))
POINTS = int(os.environ.get("POINTS", "1000000"))
DATASETS = int(os.environ.get("DATASETS", "1000"))
EVENTS = int(os.environ.get("EVENTS", "1000000"))
ENDPOINTS = int(os.environ.get("ENDPOINTS", "100"))
BULK, CURVE = "experiment:fraud/bulk", f"{0xC0FFEE:032x}"
SETTLE_S = 25.0
DAY = 86400.0


def runs() -> Iterator[dict[str, Any]]:
    """The runs, the same for both sides."""
    for n in range(RUNS):
        loss = n * 7919 % 10_007 / 10_007
        yield {
            "id": f"{n + 4096:032x}", "title": f"bulk-{n:05}", "started": 1_700_000_000.0 + 60 * n,
            "metrics": {"loss": loss, "acc": n * 6151 % 9_973 / 9_973}
            | {f"m{k:03}": (n * (k + 3) % 1009) / 1009 for k in range(METRICS - 2)},
            "params": {"model": ("tree", "net", "linear")[n % 3], "lr": ("0.1", "0.01")[n % 2], "width": str(n % 512)},
            "tags": {"team": ("risk", "fraud", "credit", "cards")[n % 4], "mlflow.user": "amal"},
        }  # fmt: skip


def curve() -> Iterator[tuple[int, float]]:
    """Step and value of the long one."""
    dice = random.Random(1)
    for step in range(POINTS):
        yield step, 2.0 / (1 + step / 50_000) + dice.random() * 0.05


def digest() -> str:
    """Of everything that makes it what it is."""
    parts = (sys.modules[__name__], life, life_rooms, life_sweeps, hostile, ground)
    text = "".join(inspect.getsource(one) for one in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def seeded() -> Path:
    """The folder with `house` and `tokens.json`; made when it is not there. SEED names one that was made before."""
    if os.environ.get("SEED"):
        return Path(os.environ["SEED"])
    home = COMPONENTS / "bench-console" / f"{digest()}-{RUNS}-{EVENTS}"
    if not (home / "ready").is_file():
        shutil.rmtree(home, ignore_errors=True)
        ground.seed(home)
        fill(home)
        (home / "ready").touch()
    return home


def fill(home: Path) -> None:
    """Everything that there is much of."""
    house = Server(load_settings(str(home / "house"), {"zone": "ae-dubai"}))
    tokens = json.loads((home / "tokens.json").read_text())
    people = {name: LocalClient(house, house.authenticate(tokens[name]), "fraud") for name in ("amal", "mona", "omar")}
    for part in (calm, endpoints, datasets, tracked, long_curve, events, settle):
        began = time.perf_counter()
        part(house, people)
        print(f"    made {part.__name__:<12} {time.perf_counter() - began:8.1f} s", flush=True)
    house.close()


def calm(house: Server, people: dict[str, Any]) -> None:
    """Nothing of the small life goes on: only what pages cost is to be measured."""
    amal, mona = people["amal"], people["mona"]
    mona.serve.stop(life_rooms.ENDPOINT, reason="the bench wants quiet")
    amal.flows.cancel("turn:fraud/retrain-3", reason="the bench wants quiet")
    for job in amal.jobs.list(project="fraud", state="running").jobs:
        amal.jobs.cancel(job.ref)
    del house


def endpoints(house: Server, people: dict[str, Any]) -> None:
    """Asleep: none runs while nobody asks, and nobody has since an hour ago."""
    counts, spread = house.desks["serve"].counts, {latency_bucket(900): 20, latency_bucket(1800): 5}
    for n in batched(house, range(ENDPOINTS)):
        ref, begun = Ref("endpoint", "fraud", f"e{n:03}"), time.time() - 2 * 3600
        people["mona"].serve.deploy(ref, "model:fraud/scorer@v1", least=0, most=1, cpus=0.1, memory="64MiB")
        counts.append(
            [CountRow("bank", str(ref), "base", 1, begun + 60 * k, 25, 0, spread, 0, 0, "g1", "ae-dubai")
             for k in range(60)]
        )  # fmt: skip


def datasets(house: Server, people: dict[str, Any]) -> None:
    """Each of one version."""
    for n in batched(house, range(DATASETS)):
        put(people["amal"], f"dataset:fraud/d{n:04}", f"rows of {n}")


def tracked(house: Server, people: dict[str, Any]) -> None:
    """Runs as a client logs them."""
    track = people["amal"].track
    track.create(BULK, "Ten thousand runs")
    for run in batched(house, runs(), 100):
        made = track.start(BULK, run["title"], run["tags"], run["params"], run["started"], run["id"]).ref
        track.log(made, tuple(Metric(key, value, run["started"], 0) for key, value in run["metrics"].items()))
        track.end(made, "finished", run["started"] + 30)


def long_curve(house: Server, people: dict[str, Any]) -> None:
    """One run with a metric of a million points."""
    track = people["amal"].track
    made = track.start(BULK, "the long one", run=CURVE, started=1_690_000_000.0).ref
    some: list[Metric] = []
    for step, value in curve():
        some.append(Metric("curve", value, 1_690_000_000.0 + step, step))
        if len(some) == 10_000:
            track.log(made, tuple(some))
            some = []
    track.log(made, tuple(some))
    track.end(made, "finished")
    del house


def events(house: Server, people: dict[str, Any]) -> None:
    """What a month of people reading and writing leaves in the log."""
    dice, now = random.Random(2), time.time()
    verbs = ("store.get", "catalog.open", "features.read", "serve.enter", "track.log")
    things = [Ref("dataset", "fraud", f"d{n:04}", "v1") for n in range(DATASETS)]
    each = 5000
    for begun in range(0, EVENTS, each):
        at = now - 30 * DAY + 30 * DAY * begun / EVENTS
        ctx: CallContext = replace(house.context(people["amal"].actor, purpose="fraud"), now=lambda at=at: at)
        with house.ledger.write(ctx) as tx:
            for n in range(min(each, EVENTS - begun)):
                tx.emit(verbs[n % 5], things[dice.randrange(len(things))], reads=n)


def settle(house: Server, people: dict[str, Any]) -> None:
    """Let loops come to rest, and the log be sealed, so that nothing of it is left to the first minute of a server."""
    house.start_loops()
    time.sleep(SETTLE_S)
    house.stop_loops()
    people["omar"].audit.seal()
    ran = [one.ref.name for one in people["amal"].jobs.list(state="running", limit=1000).jobs]
    if ran:
        raise SystemExit(f"still running: {ran[:5]}; nothing should")


def batched(house: Server, many: Iterable[Any], size: int = 200) -> Iterator[Any]:
    """Each of many; what is done for so many of them becomes durable together."""
    group, number = house.ledger.group(), 0
    group.__enter__()
    for one in many:
        if number == size:
            group.__exit__(None, None, None)
            group, number = house.ledger.group(), 0
            group.__enter__()
        number += 1
        yield one
    group.__exit__(None, None, None)


if __name__ == "__main__":
    begun = time.perf_counter()
    print(seeded(), f"{time.perf_counter() - begun:.1f} s")
