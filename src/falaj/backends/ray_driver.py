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

POLL_INTERVAL_S = 0.5
PLACEMENT_TIMEOUT_S = 120.0
ORDERS_TIMEOUT_S = 60.0
EXIT_TRY_AGAIN = 75
EXIT_TERMINATED = 128 + signal.SIGTERM
MAX_OUTPUT_BYTES = 64 << 20
"""Of one slot's output; the job's log is fetched whole by whoever reads it."""


class SlotActor:
    """Runs the launcher of one slot, and hands out what it writes."""

    def __init__(self, index: int, orders: dict[str, Any], host: str) -> None:
        self._slot_folder = tempfile.mkdtemp(prefix="falaj-slot-")
        # The cluster's token opens all of it; the processes of a job have no business with it.
        base_variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
        # `python` is the cluster's, however its daemons were started.
        path = os.pathsep.join((str(Path(sys.executable).parent), base_variables.get("PATH", os.defpath)))
        base_variables |= {"PATH": path}
        launch_variables = {
            "FALAJ_CONTEXT": json.dumps(orders["context"]),
            "FALAJ_HOST": host,
            "TMPDIR": self._slot_folder,
        }
        environment = base_variables | orders["env"] | launch_variables
        # The launcher goes when we go; it takes its processes along.
        libc = ctypes.CDLL(None)
        self._process = subprocess.Popen(  # noqa: S603  # nosec B603: our own launcher, and no shell
            [sys.executable, "-I", "falaj-worker.pyz", "-", str(index)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(1, signal.SIGTERM),  # noqa: PLW1509
        )
        self._index, self._output_bytes = index, 0
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        threading.Thread(target=self._read_output, daemon=True).start()

    def news(self) -> tuple[list[str], dict[str, Any] | None]:
        """Lines since the last call, and how it ended once it has; waits a moment when there is nothing to tell."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._lines) or self._is_over, 1.0)
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), 1000))]
            if not self._is_over or self._lines:
                return lines, None
        exit_code = self._process.wait()
        exit_facts = {
            "index": self._index,
            "code": exit_code if exit_code >= 0 else 128 - exit_code,
            "reason": self._read_exit_reason(),
        }
        shutil.rmtree(self._slot_folder, ignore_errors=True)
        return lines, exit_facts

    def tell(self, signal_number: int, grace_s: float | None) -> None:
        """Send the launcher a signal; how much grace it may give, it reads in its folder."""
        for folder in Path(self._slot_folder).glob("falaj-*") if grace_s is not None else ():
            (folder / "stop").write_text(json.dumps({"grace_s": grace_s}))
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal_number)

    def _read_output(self) -> None:
        for line in self._process.stdout or ():
            self._output_bytes += len(line)
            with self._changed:
                if self._output_bytes <= MAX_OUTPUT_BYTES:
                    self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
                    self._changed.notify()
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def _read_exit_reason(self) -> str:
        for file in Path(self._slot_folder).glob(f"*/slot-{self._index}.exit"):
            with contextlib.suppress(OSError, ValueError):
                return str(json.loads(file.read_bytes())["reason"])
        return ""


class AttemptDriver:
    """One attempt's life on the cluster."""

    def __init__(self, attempt_id: str) -> None:
        import ray
        from ray.experimental import internal_kv

        ray.init(log_to_driver=False, logging_level="ERROR")
        self._ray = ray
        self._kv_functions = {name: getattr(internal_kv, f"_internal_kv_{name}") for name in ("list", "get", "del")}
        self._pending_messages: dict[str, dict[str, Any]] = {}
        self._attempt_id = attempt_id
        self._exits: dict[int, dict[str, Any]] = {}
        self._actors: dict[int, Any] = {}
        self._lost_reason = ""
        self._stop_request: dict[str, Any] | None = None
        self._kill_at = 0.0
        signal.signal(signal.SIGTERM, self._on_terminate)

    def run(self) -> int:
        """From the orders to the last line; gives the exit code of the job."""
        try:
            if (orders := self._wait_for_orders()) and (placement_group := self._reserve_placement(orders)):
                self._start_actors(orders, placement_group)
                self._follow_actors()
        finally:
            exits = list(self._exits.values())  # as we heard of them: the first that failed ended the others
            _write_output(f"falaj-exits {json.dumps({'exits': exits, 'lost': self._lost_reason})}\n")
        return max((exit_fact["code"] for exit_fact in exits), default=EXIT_TRY_AGAIN)

    def _wait_for_orders(self) -> dict[str, Any] | None:
        deadline = time.monotonic() + ORDERS_TIMEOUT_S
        while not self._is_stopping() and time.monotonic() < deadline:
            if orders := self._take_message("orders"):
                return orders
            time.sleep(POLL_INTERVAL_S)
        self._fail_slots(range(1), "stopped before it began" if self._stop_request else "its orders never came")
        return None

    def _reserve_placement(self, orders: dict[str, Any]) -> Any:
        """Room for all slots or none, each on its node."""
        bundles = [slot_order["bundle"] for slot_order in orders["slots"]]
        placement_group = self._ray.util.placement_group(bundles, strategy="PACK", name=f"falaj:{self._attempt_id}")
        deadline = time.monotonic() + PLACEMENT_TIMEOUT_S
        while not placement_group.wait(POLL_INTERVAL_S):
            if self._is_stopping() or time.monotonic() > deadline:
                self._fail_slots(
                    range(len(bundles)), "stopped before it began" if self._stop_request else "Ray had no room"
                )
                return None
        return placement_group

    def _start_actors(self, orders: dict[str, Any], placement_group: Any) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(SlotActor)
        host = orders["slots"][0]["host"]
        for index, slot in enumerate(orders["slots"]):
            bundle = {name: amount for name, amount in slot["bundle"].items() if not name.startswith("node:")}
            configured_actor = actor.options(
                num_cpus=bundle.pop("CPU", 0),
                num_gpus=bundle.pop("GPU", 0),
                memory=bundle.pop("memory", None),
                resources=bundle,
                max_restarts=0,
                max_concurrency=3,
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group, index),
            )
            self._actors[index] = configured_actor.remote(index, orders, host)

    def _follow_actors(self) -> None:
        """Until every slot is over. One that ended badly, or is gone, ends the others."""
        index_by_future = {actor.news.remote(): index for index, actor in self._actors.items()}
        while index_by_future:
            ready_futures, _ = self._ray.wait(list(index_by_future), timeout=POLL_INTERVAL_S)
            for news_future in ready_futures:
                index = index_by_future.pop(news_future)
                if not self._handle_news(index, news_future):
                    index_by_future[self._actors[index].news.remote()] = index
            if self._is_stopping() or any(exit_fact["code"] for exit_fact in self._exits.values()):
                self._end_actors()
            if self._take_message("checkpoint"):
                self._signal_actors(signal.SIGUSR1)

    def _handle_news(self, index: int, news_future: Any) -> bool:
        """Print what a slot wrote; whether it is over."""
        try:
            lines, exit_facts = self._ray.get(news_future)
        except self._ray.exceptions.RayError as error:
            reason = (str(error).strip().splitlines() or [""])[-1].strip()[:500]
            lines, exit_facts = [], {"index": index, "code": EXIT_TRY_AGAIN, "reason": reason}
            if not getattr(error, "actor_init_failed", False):
                self._lost_reason = f"slot {index}: {reason}"
                exit_facts = {"index": index, "code": 137, "reason": "its node or its actor is gone"}
        if lines:
            _write_output("".join(f"{index}|{line}\n" for line in lines))
        if exit_facts is not None:
            self._exits[index] = exit_facts
        return exit_facts is not None

    def _end_actors(self) -> None:
        now = time.monotonic()
        if not self._kill_at:
            grace_s = float((self._stop_request or {}).get("grace_s", 10.0))
            self._kill_at = now + grace_s + 5.0
            self._signal_actors(signal.SIGTERM, grace_s)
        elif now > self._kill_at:
            for index in self._list_running():
                self._ray.kill(self._actors[index])
            self._kill_at = now + 60.0

    def _signal_actors(self, signal_number: int, grace_s: float | None = None) -> None:
        for index in self._list_running():
            self._actors[index].tell.remote(signal_number, grace_s)

    def _list_running(self) -> list[int]:
        return [index for index in self._actors if index not in self._exits]

    def _fail_slots(self, slots: range, reason: str) -> None:
        exit_code = EXIT_TERMINATED if self._stop_request else EXIT_TRY_AGAIN
        self._exits = {index: {"index": index, "code": exit_code, "reason": reason} for index in slots}

    def _is_stopping(self) -> bool:
        """Hear what there is to hear; whether we are to end."""
        self._read_messages()
        self._stop_request = self._stop_request or self._take_message("stop")
        return self._stop_request is not None

    def _on_terminate(self, *_: object) -> None:
        self._stop_request = self._stop_request or {"grace_s": 2.0}

    def _take_message(self, message_name: str) -> dict[str, Any] | None:
        """What the platform said under a key since we last took it."""
        return self._pending_messages.pop(message_name, None)

    def _read_messages(self) -> None:
        """Take all keys of ours out of the store: one question a turn, whatever there is."""
        key_prefix = f"gcs://falaj_{self._attempt_id}_"
        for key in self._kv_functions["list"](key_prefix.encode()):
            if message := self._kv_functions["get"](key):
                self._kv_functions["del"](key)
                self._pending_messages[key.decode().removeprefix(key_prefix).removesuffix(".zip")] = json.loads(message)


def _write_output(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    # At once: Ray would have much to say while it leaves, and the last lines are what the platform is told.
    os._exit(AttemptDriver(sys.argv[1]).run())
