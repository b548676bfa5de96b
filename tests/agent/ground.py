"""A platform and its zones, each on a host of its own, with one link between each zone and the platform."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.servers.netns import HUB, Host, town

FALAJ = (sys.executable, "-m", "falaj")
URL = f"https://{HUB}:8470"
T = TypeVar("T")


def until(look: Callable[[], T], deadline_s: float = 120.0) -> T:
    """What `look` gives, once it is something."""
    end = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < end, f"still {found!r}"
        time.sleep(0.1)
    return found


@dataclass
class Zone:
    """A zone's host and its agent."""

    name: str
    host: Host
    home: Path
    ground: "Ground"
    agent: "subprocess.Popen[bytes] | None" = None
    door = "http://127.0.0.1:8471"

    @property
    def key_log(self) -> Path:
        return self.home / "tls-keys"

    def start(self, token: str = "") -> None:
        """Start the agent, with an invitation the first time."""
        log = self.home / "agent.log"
        begun = log.stat().st_size if log.exists() else 0
        words = ["agent", "--join", URL, "--ca", str(self.ground.ca), "--zone", self.name, "--json"]
        words += ["--home", str(self.home / "agent"), "--store", f"dir:{self.home}/blobs"]
        env = {**os.environ, "SSLKEYLOGFILE": str(self.key_log), "FALAJ_JOIN": token, "FALAJ_TOKEN": ""}
        self.agent = self.host.start([*FALAJ, *words], env, log)
        until(lambda: b'"ready"' in log.read_bytes()[begun:])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the agent's process; its attempts live on."""
        if self.agent is not None:
            self.agent.send_signal(number)
            self.agent.wait(30)
            self.agent = None

    def falaj(self, *words: str, fails: bool = False) -> Any:
        """What a person in the zone gets, through the agent's door."""
        return self.ground.asked(self.host, self.door, words, self.ground.sara, fails=fails)

    def submit(self, script: Path, *words: str) -> str:
        """Submit a program here; gives its name."""
        made = self.falaj("jobs", "submit", str(script), "--zone", self.name, "--project", "fraud", *words)
        return str(made["ref"])


@dataclass
class Ground:
    """The platform on the hub."""

    hub: Host
    home: Path
    admin: str = ""
    sara: str = ""
    server: "subprocess.Popen[bytes] | None" = None
    zones: dict[str, Zone] = field(default_factory=dict)

    @property
    def ca(self) -> Path:
        return self.home / "control/tls/ca.pem"

    def start(self) -> None:
        """Start the platform; the first time its people come in."""
        log = self.home / "up.log"
        begun = log.stat().st_size if log.exists() else 0
        words = ["up", "--at", str(self.home / "control"), "--tls", "--listen", f"{HUB}:8470"]
        self.server = self.hub.start([*FALAJ, *words], {**os.environ, "FALAJ_TOKEN": ""}, log)
        until(lambda: b"Falaj is ready" in log.read_bytes()[begun:])
        if not self.admin:
            self.admin = next(word for word in log.read_text().split() if word.startswith("fj_"))
            roles = "data-scientist,ml-engineer"
            code = self.operator("people", "add", "sara", "--roles", roles, "--jurisdiction", "AE")["code"]
            self.sara = self.stranger("people", "enroll", code)["token"]

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the platform's process."""
        if self.server is not None:
            self.server.send_signal(number)
            self.server.wait(60)
            self.server = None

    def add_zone(self, name: str, host: Host) -> Zone:
        """A zone with its cluster, and an agent that joined."""
        owner = {**os.environ, "FALAJ_TOKEN": ""}
        at = ("--at", str(self.home / "control"))
        law = ("AE-DU", "AE", "--regimes", "AE-PDPL", "--max-class", "3", "--more", "operator=Bank")
        for words in (
            ("zones", "add", name, *law, "--store", f"agent:{name}"),
            ("clusters", "add", f"in-{name}", f"agent:{name}", "--zone", name),
        ):
            done = self.hub.run([*FALAJ, *at, *words], owner)
            assert done.returncode == 0, done.stderr
        home = self.home / name
        home.mkdir()
        self.zones[name] = zone = Zone(name, host, home, self)
        zone.start(self.operator("agents", "invite", "--zone", name)["token"])
        until(lambda: self.state(name) == "connected")
        return zone

    def operator(self, *words: str, fails: bool = False) -> Any:
        """What the operator gets at the platform."""
        return self.asked(self.hub, URL, words, self.admin, fails=fails)

    def stranger(self, *words: str) -> Any:
        """What somebody gets at the platform who has no credential."""
        return self.asked(self.hub, URL, words, "")

    def person(self, *words: str, fails: bool = False) -> Any:
        """What a person outside the zones gets at the platform."""
        return self.asked(self.hub, URL, words, self.sara, fails=fails)

    def state(self, zone: str) -> str:
        """Whether an agent is there."""
        return next(str(one["state"]) for one in self.operator("agents", "list") if one["zone"] == zone)

    def asked(self, host: Host, at: str, words: tuple[str, ...], token: str, *, fails: bool = False) -> Any:
        """One command on one host."""
        env = {**os.environ, "FALAJ_TOKEN": token}
        done = host.run([*FALAJ, "--at", at, "--ca", str(self.ca), "--json", *words], env)
        assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
        text = done.stderr or done.stdout if fails else done.stdout
        return json.loads(text.strip().splitlines()[-1]) if text.strip() else None


@contextmanager
def ground(home: Path, zones: tuple[str, ...]) -> Iterator[Ground]:
    """All of it, and its end."""
    with town(len(zones)) as (hub, hosts):
        made = Ground(hub, home)
        try:
            made.start()
            for name, host in zip(zones, hosts, strict=True):
                made.add_zone(name, host)
            yield made
        finally:
            for zone in made.zones.values():
                zone.stop()
            made.stop()
