"""What runs on the Ray cluster for one attempt: the entrypoint of a Ray job, with the cluster's own ray.

It reserves room for the whole gang at once, each slot on the node that was chosen for it, and starts an actor for every
slot, which runs the launcher. Whatever a slot writes is written to the job's log as `N|text`. It is told things through
keys of the cluster's own store, which the platform sets as if they were packages. The last line says how slots ended:

    falaj-exits {"exits": [{"index": 0, "code": 0, "reason": ""}], "lost": ""}

This file is sent alone: it imports the standard library and ray, and nothing of Falaj.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

TURN_S = 0.5
ROOM_S = 120.0
ORDERS_S = 60.0
TRY_AGAIN = 75
TERMINATED = 128 + signal.SIGTERM
MOST_BYTES = 64 << 20
"""Of one slot's output; the job's log is fetched whole by whoever reads it."""


class SlotActor:
    """Runs the launcher of one slot, and hands out what it writes."""

    def __init__(self, index: int, orders: dict[str, Any], host: str) -> None:
        self._home = tempfile.mkdtemp(prefix="falaj-slot-")
        # The cluster's token opens all of it; the processes of a job have no business with it.
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
        # `python` is the cluster's, however its daemons were started.
        path = os.pathsep.join((str(Path(sys.executable).parent), own.get("PATH", os.defpath)))
        own |= {"PATH": path}
        given = {"FALAJ_CONTEXT": json.dumps(orders["context"]), "FALAJ_HOST": host, "TMPDIR": self._home}
        env = own | orders["env"] | given
        # The launcher goes when we go; it takes its processes along.
        parent = ctypes.CDLL(None)
        self._process = subprocess.Popen(  # noqa: S603  # nosec B603: our own launcher, and no shell
            [sys.executable, "-I", "falaj-worker.pyz", "-", str(index)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: parent.prctl(1, signal.SIGTERM),  # noqa: PLW1509
        )
        self._index, self._size = index, 0
        self._lines: deque[str] = deque()
        self._news = threading.Condition()
        self._over = False
        threading.Thread(target=self._read, daemon=True).start()

    def news(self) -> tuple[list[str], dict[str, Any] | None]:
        """Lines since the last call, and how it ended once it has; waits a moment when there is nothing to tell."""
        with self._news:
            self._news.wait_for(lambda: bool(self._lines) or self._over, 1.0)
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), 1000))]
            if not self._over or self._lines:
                return lines, None
        code = self._process.wait()
        end = {"index": self._index, "code": code if code >= 0 else 128 - code, "reason": self._reason()}
        shutil.rmtree(self._home, ignore_errors=True)
        return lines, end

    def tell(self, number: int, grace_s: float | None) -> None:
        """Send the launcher a signal; how much grace it may give, it reads in its folder."""
        for folder in Path(self._home).glob("falaj-*") if grace_s is not None else ():
            (folder / "stop").write_text(json.dumps({"grace_s": grace_s}))
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._size += len(line)
            with self._news:
                if self._size <= MOST_BYTES:
                    self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
                    self._news.notify()
        with self._news:
            self._over = True
            self._news.notify()

    def _reason(self) -> str:
        for file in Path(self._home).glob(f"*/slot-{self._index}.exit"):
            with contextlib.suppress(OSError, ValueError):
                return str(json.loads(file.read_bytes())["reason"])
        return ""


class Driver:
    """One attempt's life on the cluster."""

    def __init__(self, attempt: str) -> None:
        import ray
        from ray.experimental import internal_kv

        ray.init(log_to_driver=False, logging_level="ERROR")
        self._ray = ray
        self._store = {name: getattr(internal_kv, f"_internal_kv_{name}") for name in ("list", "get", "del")}
        self._told: dict[str, dict[str, Any]] = {}
        self._attempt = attempt
        self._exits: dict[int, dict[str, Any]] = {}
        self._actors: dict[int, Any] = {}
        self._lost = ""
        self._stop: dict[str, Any] | None = None
        self._kill_at = 0.0
        signal.signal(signal.SIGTERM, self._asked_to_end)

    def run(self) -> int:
        """From the orders to the last line; gives the exit code of the job."""
        try:
            if (orders := self._wait_for_orders()) and (room := self._reserve(orders)):
                self._start(orders, room)
                self._follow()
        finally:
            exits = list(self._exits.values())  # as we heard of them: the first that failed ended the others
            _write(f"falaj-exits {json.dumps({'exits': exits, 'lost': self._lost})}\n")
        return max((one["code"] for one in exits), default=TRY_AGAIN)

    def _wait_for_orders(self) -> dict[str, Any] | None:
        end = time.monotonic() + ORDERS_S
        while not self._stopping() and time.monotonic() < end:
            if orders := self._take("orders"):
                return orders
            time.sleep(TURN_S)
        self._refuse(range(1), "stopped before it began" if self._stop else "its orders never came")
        return None

    def _reserve(self, orders: dict[str, Any]) -> Any:
        """Room for all slots or none, each on its node."""
        bundles = [one["bundle"] for one in orders["slots"]]
        room = self._ray.util.placement_group(bundles, strategy="PACK", name=f"falaj:{self._attempt}")
        end = time.monotonic() + ROOM_S
        while not room.wait(TURN_S):
            if self._stopping() or time.monotonic() > end:
                self._refuse(range(len(bundles)), "stopped before it began" if self._stop else "Ray had no room")
                return None
        return room

    def _start(self, orders: dict[str, Any], room: Any) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(SlotActor)
        host = orders["slots"][0]["host"]
        for index, slot in enumerate(orders["slots"]):
            bundle = {name: amount for name, amount in slot["bundle"].items() if not name.startswith("node:")}
            made = actor.options(
                num_cpus=bundle.pop("CPU", 0),
                num_gpus=bundle.pop("GPU", 0),
                memory=bundle.pop("memory", None),
                resources=bundle,
                max_restarts=0,
                max_concurrency=3,
                scheduling_strategy=PlacementGroupSchedulingStrategy(room, index),
            )
            self._actors[index] = made.remote(index, orders, host)

    def _follow(self) -> None:
        """Until every slot is over. One that ended badly, or is gone, ends the others."""
        asked = {actor.news.remote(): index for index, actor in self._actors.items()}
        while asked:
            ready, _ = self._ray.wait(list(asked), timeout=TURN_S)
            for answer in ready:
                index = asked.pop(answer)
                if not self._hear(index, answer):
                    asked[self._actors[index].news.remote()] = index
            if self._stopping() or any(one["code"] for one in self._exits.values()):
                self._end()
            if self._take("checkpoint"):
                self._tell(signal.SIGUSR1)

    def _hear(self, index: int, answer: Any) -> bool:
        """Print what a slot wrote; whether it is over."""
        try:
            lines, end = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            reason = (str(error).strip().splitlines() or [""])[-1].strip()[:500]
            lines, end = [], {"index": index, "code": TRY_AGAIN, "reason": reason}
            if not getattr(error, "actor_init_failed", False):
                self._lost = f"slot {index}: {reason}"
                end = {"index": index, "code": 137, "reason": "its node or its actor is gone"}
        if lines:
            _write("".join(f"{index}|{line}\n" for line in lines))
        if end is not None:
            self._exits[index] = end
        return end is not None

    def _end(self) -> None:
        now = time.monotonic()
        if not self._kill_at:
            grace_s = float((self._stop or {}).get("grace_s", 10.0))
            self._kill_at = now + grace_s + 5.0
            self._tell(signal.SIGTERM, grace_s)
        elif now > self._kill_at:
            for index in self._alive():
                self._ray.kill(self._actors[index])
            self._kill_at = now + 60.0

    def _tell(self, number: int, grace_s: float | None = None) -> None:
        for index in self._alive():
            self._actors[index].tell.remote(number, grace_s)

    def _alive(self) -> list[int]:
        return [index for index in self._actors if index not in self._exits]

    def _refuse(self, slots: range, reason: str) -> None:
        code = TERMINATED if self._stop else TRY_AGAIN
        self._exits = {index: {"index": index, "code": code, "reason": reason} for index in slots}

    def _stopping(self) -> bool:
        """Hear what there is to hear; whether we are to end."""
        self._listen()
        self._stop = self._stop or self._take("stop")
        return self._stop is not None

    def _asked_to_end(self, *_: object) -> None:
        self._stop = self._stop or {"grace_s": 2.0}

    def _take(self, what: str) -> dict[str, Any] | None:
        """What the platform said under a key since we last took it."""
        return self._told.pop(what, None)

    def _listen(self) -> None:
        """Take all keys of ours out of the store: one question a turn, whatever there is."""
        start = f"gcs://falaj_{self._attempt}_"
        for key in self._store["list"](start.encode()):
            if said := self._store["get"](key):
                self._store["del"](key)
                self._told[key.decode().removeprefix(start).removesuffix(".zip")] = json.loads(said)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    # At once: Ray would have much to say while it leaves, and the last lines are what the platform is told.
    os._exit(Driver(sys.argv[1]).run())
