"""Load on servers: wrk over HTTP/1.1 and h2load over HTTP/2 on one core, and what it cost the servers on the other."""

import json
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER_CORE, LOAD_CORE = "0", "1"
FIGURES = '{"n": %d, "us": %d, "p50": %d, "p99": %d, "bad": %d}'
TASKSET = shutil.which("taskset") or "taskset"


@dataclass(frozen=True, slots=True)
class Shot:
    """One burst of load."""

    per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU time of the server's whole process tree for one request."""
    bad: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked, and whose CPU time it costs."""

    name: str
    url: str
    body: bytes
    headers: dict[str, str]
    pids: tuple[int, ...]
    http2: bool = False


@contextmanager
def started(
    command: Sequence[str], log: Path, core: str = SERVER_CORE, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A server on its core, ended with everything it started."""
    whole = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "", **env}
    with log.open("ab") as file:
        process = subprocess.Popen(
            [TASKSET, "-c", core, *command], stdout=subprocess.PIPE, stderr=file, env=whole, start_new_session=True
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def burst(target: Target, connections: int, seconds: float) -> Shot:
    """So many connections that each ask again as soon as they are answered."""
    tree = family(target.pids)
    before = cpu_s(tree)
    try:
        found = (_h2load if target.http2 else _wrk)(target, connections, seconds)
    except SystemExit as failed:
        raise SystemExit(f"{target.name}: {failed}") from failed
    used = cpu_s(family(target.pids) | tree) - before
    return Shot(found[0], found[1], found[2], used * 1e6 / max(1, found[3]), found[4])


def median(shots: Sequence[Shot]) -> Shot:
    """Each figure's median; every bad answer."""
    middle = [
        statistics.median(getattr(shot, name) for shot in shots) for name in ("per_s", "p50_us", "p99_us", "cpu_us")
    ]
    return Shot(*middle, bad=sum(shot.bad for shot in shots))


def spent_s(pids: Sequence[int]) -> float:
    """Processor time of these processes and all below them, those that have ended among them."""
    ticks = 0
    for pid in family(pids):
        with suppress(OSError):  # it ended while we looked
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def family(pids: Sequence[int]) -> set[int]:
    """These processes and all below them."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):  # it ended while we looked
                parent = 0
            parents.setdefault(parent, []).append(int(entry.name))
    found, todo = set(pids), list(pids)
    while todo:
        new = [pid for pid in parents.get(todo.pop(), ()) if pid not in found]
        found.update(new)
        todo += new
    return found


def cpu_s(pids: set[int]) -> float:
    """CPU time of processes that live."""
    total = 0.0
    for pid in pids:
        try:
            # In nanoseconds, of every thread: the ticks of /proc/PID/stat are too coarse for a burst of a second.
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):  # it ended while we looked
            total += 0
    return total


def rss_mib(pid: int) -> float:
    """What a process holds in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def until(look: Any, what: str, seconds: float = 120.0) -> Any:
    """What `look` gives once it gives something."""
    end, last = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            if (found := look()) is not None:
                return found
        except (OSError, ValueError, KeyError) as error:
            last = str(error)
        time.sleep(0.05)
    raise SystemExit(f"{what} did not come up: {last[:300]}")


def _wrk(target: Target, connections: int, seconds: float) -> tuple[float, float, float, int, int]:
    with tempfile.TemporaryDirectory() as home:
        body, script = Path(home, "body"), Path(home, "post.lua")
        body.write_bytes(target.body)
        lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in target.headers.items()]
        if target.body:
            lines += [
                'wrk.method = "POST"',
                f'local f = io.open("{body}", "rb")',
                'wrk.body = f:read("*a")',
                "f:close()",
            ]
        lines += [
            "done = function(summary, latency, requests)",
            "  local e = summary.errors",
            f"  io.write(string.format([[\n{FIGURES}\n]],",
            "    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),",
            "    e.connect + e.read + e.write + e.status + e.timeout))",
            "end",
        ]
        script.write_text("\n".join(lines))
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{max(1, round(seconds))}s",
            "--timeout",
            "30s",
            "-s",
            str(script),
            target.url,
        ]
        said = _on_core(command).strip().splitlines()[-1]
    found = json.loads(said)
    return found["n"] / (found["us"] / 1e6), found["p50"], found["p99"], found["n"], found["bad"]


def _h2load(target: Target, connections: int, seconds: float) -> tuple[float, float, float, int, int]:
    with tempfile.TemporaryDirectory() as home:
        body, log = Path(home, "body"), Path(home, "log")
        body.write_bytes(b"\0" + struct.pack(">I", len(target.body)) + target.body)
        extra = [word for name, value in target.headers.items() for word in ("-H", f"{name}: {value}")]
        command = [
            "h2load", "-t1", f"-c{connections}", "-m1", f"-D{max(1, round(seconds))}", "-d", str(body), "--log-file",
            str(log), "-H", "content-type: application/grpc", "-H", "te: trailers", *extra, target.url,
        ]  # fmt: skip
        begun = time.monotonic()
        said = _on_core(command)
        took = time.monotonic() - begun
        rows = [line.split("\t") for line in log.read_text().splitlines()]
    times = sorted(int(row[2]) for row in rows)
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", said)
    bad = sum(row[1] != "200" for row in rows)
    if not times:
        return 0.0, 0.0, 0.0, 1, 1
    per_s = float(rate[1]) if rate else len(times) / took
    return per_s, times[len(times) // 2], times[int(len(times) * 0.99)], len(times), bad


def _on_core(command: Sequence[str]) -> str:
    done = subprocess.run([TASKSET, "-c", LOAD_CORE, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout
