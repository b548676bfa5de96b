"""What counting costs in the serving path.

    python bench/watch_cost.py             all parts; about a minute on two cores
    python bench/watch_cost.py rows        one part: rows, engine (both in process), server (a real one under load)
    --small                                a round of each; its figures mean little

rows: CPU time of the whole path (hook, ids, buffer, cut, count, sample, mixture) of a row of 50 features in runs of 32,
each row a request of its own, with nothing left out. server: an MLP of 32-64-1 behind our own server over JSON, 64
connections, once with a profile beside it and once without; the two take turns, and the CPU time of a request is
compared pair by pair.
A table for people, then one last line of JSON with every bar, missed ones too.
"""

import asyncio
import contextlib
import hashlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402
from bars import bar, told  # noqa: E402
from scratch import folder  # noqa: E402
from serve_load import Shot, Target, burst, rss_mib, started  # noqa: E402

from falaj.core.model_manifest import TensorSpec  # noqa: E402
from falaj.drift.profiles import build_profile, encode_profile  # noqa: E402
from falaj.drift.records import PROFILE_FILE  # noqa: E402
from falaj.infer.engine import InferenceEngine  # noqa: E402
from falaj.infer.records import CountingConfig, ModelConfig, ServerConfig  # noqa: E402
from falaj.infer.request_queue import BatchKey, QueuedRequest  # noqa: E402
from falaj.infer.row_counting import RowCounter  # noqa: E402
from falaj.oip.tensors import InferenceRequest, InputTensor  # noqa: E402
from tests.infer import models  # noqa: E402
from tests.infer.naming import named  # noqa: E402

SMALL = "--small" in sys.argv
ROUNDS, BURSTS, SECONDS = (1, 2, 0.5) if SMALL else (7, 40, 0.5)
COLUMNS, BATCH, ROWS, TURNS = 50, 32, 32_000, 100 if SMALL else 400
TOKEN = "bench-token"  # noqa: S105 - of a server that lives for this bench
EVERYTHING = CountingConfig(share=1e9)


def main() -> None:
    """The parts that were named, or all."""
    told("watch_cost", [rows, engine, server], small=SMALL)


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
    profile = build_profile(columns, predictions={"y": y[:, 0]}, tensors=tensors)
    found = {}
    for batch in batches:
        watching = RowCounter(profile, *specs, EVERYTHING, batches=True)
        members = [waiting(number) for number in range(batch)]
        took = []
        for _ in range(ROUNDS + 1):
            began = time.process_time()
            for first in range(0, ROWS, batch):
                watching.note([x[first : first + batch]], [y[first : first + batch]], members)
            took.append((time.process_time() - began) / ROWS * 1e6)
        assert watching.take().rows == ROWS * (ROUNDS + 1)
        found[batch] = statistics.median(took[1:]), watching.size_bytes
    return found


def waiting(number: int) -> QueuedRequest:
    """A request of one row, with the name that a gateway gives it."""
    ask = InferenceRequest("m", "1", ())
    ask.name = b"%032x" % number
    return QueuedRequest(ask, lambda _: None, BatchKey((), {}, 1, runs_alone=False), 1, 0.0)


def server() -> None:
    """A real one, with a model that is watched and the same model that is not, asked in turns."""
    with folder() as at, contextlib.ExitStack() as open_:
        plain, watched = served(open_, at)
        for target in (plain, watched):
            burst(target, 64, 1.0)
        pairs = []
        for number in range(BURSTS):  # Short and many: whatever else the machine does, it does to both.
            first, second = (watched, plain) if number % 2 else (plain, watched)
            pair = {one.name: burst(one, 64, SECONDS) for one in (first, second)}
            pairs.append((pair["plain"], pair["watched"]))
        memory = rss_mib(plain.pids[0])
    for name, some in (("plain", [one for one, _ in pairs]), ("watched", [one for _, one in pairs])):
        middle = [statistics.median(getattr(shot, what) for shot in some) for what in ("per_s", "cpu_us", "p99_us")]
        print(f"  {name:8} {middle[0]:9,.0f} a second {middle[1]:7.2f} us CPU a request, p99 {middle[2]:7,.0f} us")
    cpu = [watched.cpu_us / plain.cpu_us - 1 for plain, watched in pairs]
    loss = whole_us([one for _, one in pairs]) / whole_us([one for one, _ in pairs]) - 1
    slower = 1 - statistics.median(watched.per_s / plain.per_s for plain, watched in pairs)
    low, middle_, high = statistics.quantiles(cpu, n=4) if len(cpu) > 1 else (cpu[0],) * 3
    print(f"  CPU a request {loss:+.2%} (pairs: {low:+.2%}, {middle_:+.2%}, {high:+.2%}), {memory:.0f} MiB")
    # The CPU time of a request is what a core's throughput hangs on; others on the machine move the clock, not this.
    bar("path_throughput_loss", loss, "<=", 0.03, f"by the clock {slower:+.3f}")
    bar("wrong_answers", sum(shot.bad for pair in pairs for shot in pair), "==", 0)


def whole_us(shots: list[Shot]) -> float:
    """CPU time of a request over all bursts: those that were disturbed least answered most, and weigh most."""
    return sum(shot.cpu_us * shot.per_s for shot in shots) / sum(shot.per_s for shot in shots)


def engine() -> None:
    """The same in one process, without a network: steadier than `server` on a machine that others use."""
    with folder() as at:
        plain, watched = asyncio.run(_in_turns(at))
    extra = statistics.median(b - a for a, b in zip(plain, watched, strict=True))
    middle = statistics.median(plain)
    print(f"  {middle:.2f} us CPU a request, {extra:+.2f} us when it is watched ({extra / middle:+.2%})")
    bar("path_engine_us", extra, "<=", 0.8, "3 % of a request of 27 us")


async def _in_turns(at: Path) -> tuple[list[float], list[float]]:
    """CPU microseconds a request, round by round: not watched, and watched."""
    asked_of = InferenceEngine(ServerConfig())
    found: dict[str, list[float]] = {"plain": [], "watched": []}
    for name in found:
        model = models.mlp(at / name)
        if name == "watched":
            (model / PROFILE_FILE).write_bytes(encode_profile(small_profile()))
        await asked_of.placed(ModelConfig(name, "1", str(model)))
    data = (np.arange(32, dtype=np.float32) / 32).tobytes()
    for number in range(2 * ROUNDS + 1):
        for name in sorted(found, reverse=bool(number % 2)):
            began = time.process_time()
            for _ in range(TURNS):
                left = asyncio.get_running_loop().create_future()
                answers: list[Any] = []

                def done(got: Any, answers: list[Any] = answers, left: Any = left) -> None:
                    answers.append(got)
                    if len(answers) == 64:
                        left.set_result(None)

                for _ in range(64):
                    asked_of.submit(InferenceRequest(name, "1", [InputTensor("x", "FP32", (1, 32), data)]), done)
                await left
            found[name].append((time.process_time() - began) / TURNS / 64 * 1e6)
    await asked_of.close()
    return found["plain"][1:], found["watched"][1:]


def served(open_: contextlib.ExitStack, at: Path) -> tuple[Target, Target]:
    """Our server with the small model twice; beside one of them lies a profile."""
    folders = {name: models.mlp(at / name) for name in ("plain", "watched")}
    (folders["watched"] / PROFILE_FILE).write_bytes(encode_profile(small_profile()))
    every = [{"name": name, "version": "1", "folder": str(model)} for name, model in folders.items()]
    keys = [hashlib.sha256(TOKEN.encode()).hexdigest()]
    # The hop is open, too, as a replica's is: it is what carries deltas away.
    config = {"models": every, "http": "127.0.0.1:0", "hop": "127.0.0.1:0", "hop_key": "k" * 32, "keys": keys}
    (at / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "falaj.infer", str(at / "config.json")]
    process = open_.enter_context(started(command, at / "log"))
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        raise SystemExit(f"our server did not start: {(at / 'log').read_text()[-500:]}")
    values = (np.arange(32) / 32).tolist()
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 32], "data": values}]}).encode()
    head = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    url = f"http://{json.loads(line)['http']}/v2/models"
    return tuple(Target(name, f"{url}/{name}/infer", body, head, (process.pid,)) for name in folders)  # type: ignore[return-value]


def small_profile() -> Any:
    """Of the small model."""
    x = np.random.default_rng(1).random((4_000, 32)).astype(np.float32)
    tensors = {"x": tuple(f"x[{at}]" for at in range(32)), "y": ("y",)}
    columns = {name: x[:, at] for at, name in enumerate(tensors["x"])}
    return build_profile(columns, predictions={"y": models.mlp_of(x)[:, 0]}, tensors=tensors)


if __name__ == "__main__":
    main()
