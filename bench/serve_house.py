"""Our endpoints on a real platform, for bench/serve.py: behind the gateway, and from zero replicas."""

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve_load import Target, family

from tests.jobs.lab import until
from tests.stories.serving_ground import SCORE, Platform, platform, published


@contextlib.contextmanager
def behind_gateway(home: Path, model: Path, rows: Any, core: str) -> Iterator[list[Target]]:
    """The same requests through a gateway, with its replica, both on the server's core."""
    from serve import bodies

    home.mkdir()
    with platform(home) as bank:
        bank.here.serve.deploy(SCORE, str(published(bank, model)), wait=True, cpus=0.5, memory="512MiB")
        url, pids = bank.door(), _serving(home)
        for pid in family(pids):
            os.sched_setaffinity(pid, {int(core)})
        head = {"authorization": f"Bearer {bank.token}"}
        made = [Target(f"gateway {name}", url, body, {**head, **more}, pids) for name, body, more in bodies(rows)]
        for target in made:
            _ask(bank, target.url, target.body, target.headers)
        yield made


def asleep_and_awake(home: Path, model: Path, rows: Any, rounds: int) -> list[float]:
    """Seconds from a request to its answer, where nothing ran when it came."""
    from serve import bodies

    home.mkdir()
    (_, body, more), *_ = bodies(rows)
    with platform(home) as bank:
        more = {**more, "authorization": f"Bearer {bank.token}"}
        bank.here.serve.deploy(
            SCORE, str(published(bank, model)), least=0, most=1, idle_s=1, cpus=1, memory="512MiB", wait=False
        )
        url, took = bank.door(), []
        for _ in range(rounds + 1):
            until(lambda: bank.show(SCORE), lambda one: one.state == "asleep")
            begun = time.perf_counter()
            _ask(bank, url, body, more)
            took.append(time.perf_counter() - begun)
    return took[1:]


def _serving(home: Path) -> tuple[int, ...]:
    """The gateway and the replicas of this house; the platform itself is not on the way of a request."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                whole = b" ".join(words) + (entry / "environ").read_bytes()
                ours = str(home).encode() in whole
                if ours and (b"gateway" in words or b"falaj.infer" in words):
                    found.append(int(entry.name))
    return tuple(found)


def _ask(bank: Platform, url: str, body: bytes, headers: dict[str, str]) -> None:
    del bank
    asked = urllib.request.Request(url, body, headers)  # noqa: S310 - a gateway that this bench started
    with urllib.request.urlopen(asked, timeout=120) as answer:  # noqa: S310
        if answer.status != 200:
            raise SystemExit(json.loads(answer.read()))
