"""What counting costs in the serving path.

    python bench/watch_cost.py             both parts; about a minute on two cores
    python bench/watch_cost.py rows        one part: rows (in process), server (a real one under load)
    --small                                a round of each; its figures mean little

rows: CPU time of the whole path (hook, buffer, cut, count, sample, mixture) of a row of 50 features in runs of 32,
with nothing left out. server: an MLP of 32-64-1 behind our own server over JSON, 64 connections, with a profile in its
folder and without; the two take turns, and requests a second and CPU time a request are compared round by round.
A table for people, then one last line of JSON with every bar, missed ones too.
"""

import contextlib
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402
from bars import bar, told  # noqa: E402
from scratch import folder  # noqa: E402
from serve_load import Target, burst, rss_mib, started  # noqa: E402

from falaj.core.sheet import TensorSpec  # noqa: E402
from falaj.drift.profile import profile_of, to_json  # noqa: E402
from falaj.drift.records import FILE  # noqa: E402
from falaj.infer.columns import named  # noqa: E402
from falaj.infer.records import Counting  # noqa: E402
from falaj.infer.watching import Watching  # noqa: E402
from tests.infer import models  # noqa: E402

SMALL = "--small" in sys.argv
ROUNDS, SECONDS = (1, 1.0) if SMALL else (7, 2.0)
COLUMNS, BATCH, ROWS = 50, 32, 32_000
TOKEN = "bench-token"  # noqa: S105 - of a server that lives for this bench
EVERYTHING = Counting(share=1e9)


def main() -> None:
    """The parts that were named, or both."""
    told("watch_cost", [rows, server], small=SMALL)


def rows() -> None:
    """In process, nothing left out."""
    found = us_per_row()
    for batch, (us, _) in found.items():
        print(f"  runs of {batch:4}: {us:6.2f} us a row")
    size = found[BATCH][1]
    print(f"  a model of {COLUMNS} columns takes {size / 1024:,.0f} KiB for being watched")
    bar("path_us_per_row", found[BATCH][0], "<=", 5.0)
    bar("path_kib_a_model", size / 1024, "<=", 4096)


def us_per_row(batches: tuple[int, ...] = (1, 8, BATCH, 256)) -> dict[int, tuple[float, int]]:
    """By the size of runs: CPU microseconds a row (median of rounds), and bytes of memory."""
    specs = (TensorSpec("x", "FP32", (-1, COLUMNS)),), (TensorSpec("y", "FP32", (-1, 1)),)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(ROWS, COLUMNS)).astype(np.float32), random.random((ROWS, 1)).astype(np.float32)
    tensors = named(*specs)
    columns = {name: x[:, at] for at, name in enumerate(tensors["x"])}
    profile = profile_of(columns, predictions={"y": y[:, 0]}, tensors=tensors)
    found = {}
    for batch in batches:
        watching = Watching(profile, *specs, EVERYTHING, batches=True)
        took = []
        for _ in range(ROUNDS + 1):
            began = time.process_time()
            for first in range(0, ROWS, batch):
                watching.note([x[first : first + batch]], [y[first : first + batch]])
            took.append((time.process_time() - began) / ROWS * 1e6)
        assert watching.take().rows == ROWS * (ROUNDS + 1)
        found[batch] = statistics.median(took[1:]), watching.size_bytes
    return found


def server() -> None:
    """A real one, watched and not, in turns."""
    with folder() as at, contextlib.ExitStack() as open_:
        sides = {name: next(served(open_, at, watched=name == "watched")) for name in ("plain", "watched")}
        for target in sides.values():
            burst(target, 64, 1.0)
        shots: dict[str, list[Any]] = {name: [] for name in sides}
        for number in range(ROUNDS):
            for name in sorted(sides, reverse=bool(number % 2)):
                shots[name].append(burst(sides[name], 64, SECONDS))
        memory = {name: rss_mib(target.pids[0]) for name, target in sides.items()}
    for name, some in shots.items():
        per_s, cpu_us = (statistics.median(getattr(shot, what) for shot in some) for what in ("per_s", "cpu_us"))
        p99_us = statistics.median(shot.p99_us for shot in some)
        print(f"  {name:8} {per_s:9,.0f} a second {cpu_us:7.2f} us CPU a request, p99 {p99_us:7,.0f} us,"
              f" {memory[name]:6.1f} MiB")  # fmt: skip
    pairs = list(zip(shots["plain"], shots["watched"], strict=True))
    cpu = statistics.median(watched.cpu_us / plain.cpu_us for plain, watched in pairs) - 1
    slower = 1 - statistics.median(watched.per_s / plain.per_s for plain, watched in pairs)
    print(f"  CPU a request {cpu:+.2%}, requests a second {-slower:+.2%}")
    # The CPU time of a request is what a core's throughput hangs on; others on the machine move the clock, not this.
    bar("path_throughput_loss", cpu, "<=", 0.03, f"by the clock {slower:+.3f}")
    bar("wrong_answers", sum(shot.bad for some in shots.values() for shot in some), "==", 0)


def served(open_: contextlib.ExitStack, at: Path, *, watched: bool) -> Iterator[Target]:
    """Our server with the small model; with `watched`, a profile lies beside it."""
    home = at / ("watched" if watched else "plain")
    home.mkdir()
    model = models.mlp(home / "model")
    if watched:
        (model / FILE).write_bytes(to_json(small_profile()))
    one = {"name": "m", "version": "1", "folder": str(model)}
    keys = [hashlib.sha256(TOKEN.encode()).hexdigest()]
    # The hop is open, too, as a replica's is: it is what carries deltas away.
    config = {"models": [one], "http": "127.0.0.1:0", "hop": "127.0.0.1:0", "hop_key": "k" * 32, "keys": keys}
    (home / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "falaj.infer", str(home / "config.json")]
    process = open_.enter_context(started(command, home / "log"))
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        raise SystemExit(f"our server did not start: {(home / 'log').read_text()[-500:]}")
    values = (np.arange(32) / 32).tolist()
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 32], "data": values}]}).encode()
    head = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    url = f"http://{json.loads(line)['http']}/v2/models/m/infer"
    yield Target(home.name, url, body, head, (process.pid,))


def small_profile() -> Any:
    """Of the small model."""
    x = np.random.default_rng(1).random((4_000, 32)).astype(np.float32)
    tensors = {"x": tuple(f"x[{at}]" for at in range(32)), "y": ("y",)}
    columns = {name: x[:, at] for at, name in enumerate(tensors["x"])}
    return profile_of(columns, predictions={"y": models.mlp_of(x)[:, 0]}, tensors=tensors)


if __name__ == "__main__":
    main()
