"""Faults: seeded, one at a time, each undone before a calm, each with its time in a log; and whether all came back."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from falaj.core.errors import FalajError
from tests.servers.process import wait_until
from tests.soak import outages, procs
from tests.soak.client import Notes
from tests.soak.grounds import Ground
from tests.soak.links import OPEN, SILENT, SLOW
from tests.soak.ups import READY_S

OUTAGES = {"postgres", "s3"}
OUTAGE_S = 120.0
"""An outage lasts this long at most, and half of it at least; a tenth of a short soak."""
JUMPS_S = (90, -90, 1800, -1800, 86_400, -86_400)
Fault = Callable[[], str]


class Chaos:
    """`strike` does one fault and waits until everything is ready again. Deadly ones end a platform's own process."""

    def __init__(self, ground: Ground, notes: Notes, seed: str, outage_s: float = OUTAGE_S) -> None:
        self._ground, self._notes, self._outage_s = ground, notes, outage_s
        self._chance = random.Random(f"{seed}/chaos/{ground.name}")
        self._log = (ground.folder / "timeline.jsonl").open("a", encoding="utf-8")
        self.struck: list[str] = []
        self.slowest_s = 0.0
        self._bag: dict[bool, list[str]] = {True: [], False: []}

    def faults(self, deadly: bool) -> dict[str, Fault]:
        """What can be done to this ground."""
        known: dict[str, Fault] = {"kill an attempt": self._attempt, "kill a model": self._model, "pause": self._pause,
                                   "kill a gateway": self._gateway}  # fmt: skip
        if deadly:
            known["kill a replica"] = known["kill a replica again"] = self._replica
        if self._ground.can_jump:
            known["clock"] = self._clock
        if self._ground.can_jump and deadly:
            known["clock, and killed"] = self._clock_and_kill
        if self._ground.small_disk:
            known["disk full"] = self._disk_full
        for name in self._ground.servers:
            known[f"kill {name}"] = lambda name=name: self._server(name)  # type: ignore[misc]
        for name in self._ground.links:
            known[f"cut {name}"] = lambda name=name: self._link(name, SILENT)  # type: ignore[misc]
            known[f"reset {name}"] = lambda name=name: self._reset(name)  # type: ignore[misc]
        for name in sorted(OUTAGES & set(self._ground.links)):
            known[f"hang {name}"] = lambda name=name: self._outage(outages.hang, name)  # type: ignore[misc]
            known[f"take {name} away"] = lambda name=name: self._outage(outages.take_away, name)  # type: ignore[misc]
        if self._ground.links:
            known["slow"] = lambda: self._link(self._chance.choice(sorted(self._ground.links)), SLOW)
            known["cut off"] = self._cut_off
        return known

    def strike(self, deadly: bool) -> None:
        """The next fault; each kind once before any comes again."""
        known = self.faults(deadly)
        if not self._bag[deadly]:
            self._bag[deadly] = self._chance.sample(sorted(known), len(known))
        self.do(self._bag[deadly].pop(), known)

    def do(self, name: str, known: dict[str, Fault] | None = None) -> None:
        """One fault by its name."""
        began = time.time()
        detail = (known or self.faults(deadly=True))[name]()
        ended = time.time()
        try:
            took = self._ground.await_ready()
        except TimeoutError:
            took = READY_S
            self._notes.say_wrong(f"not ready {READY_S:.0f} s after {name} ({detail})")
        self.slowest_s = max(self.slowest_s, took)
        self.struck.append(name)
        self.note(name, at=began, lasted_s=round(ended - began, 1), ready_after_s=round(took, 1), detail=detail)

    def note(self, what: str, **more: Any) -> None:
        """One line of the timeline."""
        self._log.write(json.dumps({"what": what, "at": time.time(), **more}) + "\n")
        self._log.flush()

    def _wait(self, least: float, most: float) -> float:
        """Let it last; not to wait for something."""
        pause = self._chance.uniform(least, most)
        time.sleep(pause)
        return pause

    def _replica(self) -> str:
        up = self._chance.choice(self._ground.ups)
        up.kill()
        self._wait(0.1, 6)
        up.start()
        return f"replica {self._ground.ups.index(up)}"

    def _pause(self) -> str:
        up = self._chance.choice(self._ground.ups)
        up.pause()
        lasted = self._wait(2, 25)
        up.go_on()
        return f"replica {self._ground.ups.index(up)} for {lasted:.0f} s"

    def _attempt(self) -> str:
        def found() -> list[int]:
            return procs.of_attempts(self._ground.home, r"^job:soak/(?!score)")

        with suppress(TimeoutError):
            wait_until(lambda: bool(found()), 30)
        return self._kill_one(found())

    def _model(self) -> str:
        return self._kill_one(procs.of_attempts(self._ground.home, "score"))

    def _gateway(self) -> str:
        return self._kill_one(procs.gateways([up.pid for up in self._ground.ups]))

    def _kill_one(self, pids: list[int]) -> str:
        if not pids:
            return "there is none"
        pid = self._chance.choice(sorted(pids))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return "it had ended"
        return f"process {pid}"

    def _clock(self) -> str:
        up, jump = self._chance.choice(self._ground.ups), self._chance.choice(JUMPS_S)
        self._jump(up, jump)
        self._wait(4, 12)
        # Whoever cleans up by age does so now.
        with closing(self._ground.at("ola", self._ground.ups.index(up))) as ola, suppress(FalajError):
            ola.store.collect()
        self._wait(4, 12)
        self._jump(up, 0)
        return f"replica {self._ground.ups.index(up)} by {jump} s"

    def _clock_and_kill(self) -> str:
        """Whoever dies with a wrong clock leaves times behind that only a wrong clock understands."""
        up, jump = self._chance.choice(self._ground.ups), self._chance.choice(JUMPS_S)
        self._jump(up, jump)
        self._wait(8, 25)
        up.kill()
        self._jump(up, 0)
        up.start()
        return f"replica {self._ground.ups.index(up)} by {jump} s"

    def _jump(self, up: Any, jump: int) -> None:
        self._notes.clock_wrong_until = time.time() + 3600 if jump else time.time()
        up.clock.jump(jump)

    def _disk_full(self) -> str:
        ballast = self._ground.home.parent / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        # Not always to the last byte: what is a little and what is much then fails apart.
        os.truncate(ballast, max(0, ballast.stat().st_size - self._chance.choice((0, 0, 64 << 10))))
        lasted = self._wait(4, 15)
        ballast.unlink()
        return f"for {lasted:.0f} s"

    def _server(self, name: str) -> str:
        server = self._ground.servers[name]
        server.kill()
        lasted = self._wait(0.5, 12)
        outages.start_again(server)
        return f"away {lasted:.0f} s"

    def _outage(self, cause: Callable[[Ground, str, float, Callable[[str], None]], str], name: str) -> str:
        """An outage that lasts long enough for the platform to notice, while calls watch what goes on."""
        return cause(
            self._ground, name, self._chance.uniform(self._outage_s / 2, self._outage_s), self._notes.say_wrong
        )

    def _link(self, name: str, state: str) -> str:
        link = self._chance.choice(self._ground.links[name])
        link.set(state)
        lasted = self._wait(3, 30)
        link.set(OPEN)
        return f"{name} of replica {self._ground.links[name].index(link)} {state} for {lasted:.0f} s"

    def _reset(self, name: str) -> str:
        for _ in range(5):
            for link in self._ground.links[name]:
                link.reset()
            self._wait(0.2, 1)
        return name

    def _cut_off(self) -> str:
        """One replica reaches nothing of what it has a way of its own to; callers still reach it."""
        number = self._chance.randrange(len(self._ground.ups))
        mine = [links[number] for links in self._ground.links.values() if len(links) > 1]
        for link in mine:
            link.set(SILENT)
        lasted = self._wait(5, 40)
        for link in mine:
            link.set(OPEN)
        return f"replica {number} for {lasted:.0f} s"


def timeline(path: Path) -> list[dict[str, Any]]:
    """What happened, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines()]
