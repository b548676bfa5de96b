"""What an upgrade under load stands on: two versions of the program, two platforms and two gateways on PostgreSQL and
SeaweedFS behind a balancer, all of them processes; and what watches them while they are replaced one by one.
"""

import os
import re
import shutil
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

import falaj
from falaj.server import Server, load_settings
from tests.infer import models
from tests.jobs.lab import until
from tests.people import enroll
from tests.servers.haproxy import HaproxyServer, Pool
from tests.servers.process import free_ports, wait_until
from tests.servers.seaweed import SeaweedServer
from tests.stories.serving_cluster import Door, People, Up
from tests.stories.serving_ground import SCORE, SMALL

NEXT = "0.2.0"
DRAIN_S = 4.0
"""More than the balancer needs to see that one goes: a look every 2 s, and another at once."""
NAMES = ("one", "two")


def this_version(folder: Path, version: str = falaj.__version__) -> dict[str, str]:
    """The program as it is now, whatever becomes of its files; gives the variables that make Python take it."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(falaj.__file__).parent, folder / "falaj", ignore=ignored)
    known = Path(sysconfig.get_path("purelib")) / f"falaj-{falaj.__version__}.dist-info"
    shutil.copytree(known, folder / f"falaj-{version}.dist-info")
    return {"PYTHONPATH": str(folder)}


def next_version(folder: Path) -> dict[str, str]:
    """The program as its next version might be: another number, a column more in the store, a field more in jobs."""
    found, tree = this_version(folder, NEXT), folder / "falaj"
    for name in ("__init__.py", "core/release.py"):
        _edit(tree / name, rf'"{re.escape(falaj.__version__)}"', f'"{NEXT}"')
    _edit(
        tree / "backends/sql/schema.py",
        r"\n\)\nCONTRACTS",
        '\n    ("ALTER TABLE records ADD COLUMN later TEXT",),\n)\nCONTRACTS',
    )
    _edit(tree / "backends/sqlite_log.py", r"\n\)\n_SIZE", "\n    (),\n)\n_SIZE")
    _edit(tree / "backends/postgres.py", r"\n\)\n# An earlier epoch", "\n    (),\n)\n# An earlier epoch")
    _edit(tree / "store/newer_fields.py", r"\]\] = \{\}", ']] = {"job": ("shade",)}')
    # Whatever room writes a job, this version adds to it what it alone knows.
    put = r"(        key = key_of\(ref, ctx\.tenant\)\n)"
    _edit(
        tree / "store/ledger.py",
        put,
        r'\1        body = {**body, "shade": "new"} if key.kind == "job" else body' + "\n",
    )
    return found


def _edit(path: Path, pattern: str, by: str) -> None:
    text, count = re.subn(pattern, by, path.read_text())
    assert count == 1, (path, pattern, count)
    path.write_text(text)


class Town:
    """Two platforms and two gateways, `one` and `two` of each, and the balancer before them."""

    def __init__(self, folder: Path, store: str, server: SeaweedServer) -> None:
        self.folder, self.store = folder, store
        self.older, self.newer = this_version(folder / "this"), next_version(folder / "next")
        ports = free_ports()
        self._at = {(role, name): next(ports) for role in ("api", "gateway") for name in NAMES}
        pools = {role: {name: f"127.0.0.1:{self._at[role, name]}" for name in NAMES} for role in ("api", "gateway")}
        front = {"api": next(ports), "gateway": next(ports)}
        self.balancer = HaproxyServer(
            {"api": Pool("/ready", pools["api"]), "gateway": Pool("/v2/health/ready", pools["gateway"])}, front
        )
        self.settings = {
            **server.environment,
            "FALAJ_STORE": store,
            "FALAJ_BLOBS": f"{server.create_bucket().url}?endpoint={server.endpoint}&region=us-east-1&allow_http=true",
            "FALAJ_GATEWAY": "",
            "FALAJ_GATEWAY_URL": f"https://127.0.0.1:{front['gateway']}",
            "FALAJ_HOSTS": ",".join(f"127.0.0.1:{port}" for port in front.values()),
            "FALAJ_DRAIN_S": str(DRAIN_S),
            "FALAJ_SANDBOX": "off",
            "FALAJ_LIMITS_REQUESTS_PER_S": "100000",
            "FALAJ_LIMITS_BURST": "100000",
        }
        self.home = folder / "home"
        self.running: dict[tuple[str, str], Up | Door] = {}
        self.codes: list[int] = []
        self.clients: list[Any] = []
        self.people, self.omar = People("", "", ""), ""

    def found(self) -> None:
        """A tenant with people."""
        first = self.running["api", "one"]
        assert isinstance(first, Up)
        self.people = first.people()
        with closing(first.client(self.people.boss)) as boss:
            self.omar = enroll(boss, "omar", ("auditor",), jurisdiction="AE")

    @property
    def ca(self) -> str:
        return str(self.home / "tls" / "ca.pem")

    def address(self, role: str) -> str:
        return self.balancer.address(role)

    def begin(self, role: str, name: str, version: Mapping[str, str]) -> None:
        """Start one of them, and wait until the balancer leads callers to it."""
        settings, port = {**self.settings, **version}, self._at[role, name]
        if role == "api":
            self.running[role, name] = Up(self.home, settings, "--tls", listen=f"127.0.0.1:{port}")
        else:
            self.running[role, name] = Door(self.home, settings, "--tls", port=port)
        wait_until(lambda: name in self.balancer.up(role), 60)

    def end(self, role: str, name: str) -> None:
        """As whoever upgrades it does: SIGTERM, and wait."""
        process = self.running.pop((role, name)).process
        process.terminate()
        self.codes.append(process.wait(180))
        assert process.stdout is not None
        process.stdout.close()

    def roll(self, version: Mapping[str, str]) -> None:
        """Replace all of them, one after the other."""
        for role, name in self._at:
            self.end(role, name)
            self.begin(role, name, version)

    def client(self, token: str) -> Any:
        """Somebody who calls by way of the balancer."""
        self.clients.append(falaj.connect(f"https://{self.address('api')}", token=token, ca=self.ca))
        return self.clients[-1]

    def house(self) -> Server:
        """The store from inside, in this version."""
        known = {name: self.settings[f"FALAJ_{name.upper()}"] for name in ("store", "blobs")}
        os.environ.update({name: value for name, value in self.settings.items() if name.startswith("AWS_")})
        return Server(load_settings(str(self.home), known))


@contextmanager
def town(folder: Path, store: str, server: SeaweedServer) -> Iterator[Town]:
    """All of it, in this version, with a tenant, an auditor, and an endpoint that answers."""
    made = Town(folder, store, server)
    with made.balancer:
        try:
            made.begin("api", "one", made.older)
            made.found()
            for role, name in (("api", "two"), ("gateway", "one"), ("gateway", "two")):
                made.begin(role, name, made.older)
            here = made.client(made.people.mona)
            folder = models.mlp(made.folder / "scorer", seed=7)
            here.serve.deploy(SCORE, here.catalog.publish("model:fraud/scorer", str(folder)).ref, **SMALL)
            until(lambda: here.serve.show(SCORE), lambda view: view.state == "ready")
            try:
                yield made
            finally:
                with suppress(falaj.FalajError, AssertionError):
                    _emptied(made, here)
        finally:
            for one in made.clients:
                one.close()
            for role, name in reversed(tuple(made.running)):
                made.end(role, name)


def _emptied(made: Town, here: Any) -> None:
    """Jobs would go on without a platform, and replicas are jobs."""
    for name in ("through", "back"):
        (made.folder / f"{name}.end").touch()
    here.serve.stop(SCORE)
    until(lambda: here.serve.show(SCORE), lambda view: not view.replicas)


class Watched(threading.Thread):
    """Looks at the leases of loops: how long each was nobody's at a time."""

    def __init__(self, store: str, names: tuple[str, ...] = ("jobs", "seal", "serve")) -> None:
        super().__init__(name="watch", daemon=True)
        self._store, self._names, self._ending = store, names, threading.Event()
        self.idle: dict[str, float] = dict.fromkeys(names, 0.0)

    def run(self) -> None:
        held = dict.fromkeys(self._names, time.time())
        with suppress(psycopg.OperationalError), psycopg.connect(self._store, autocommit=True) as raw:
            while not self._ending.wait(0.05):
                now = time.time()
                rows = raw.execute(
                    "SELECT name FROM leases WHERE name LIKE 'loop:%%' AND until > %s", (now,)
                ).fetchall()
                leading = {name.removeprefix("loop:") for (name,) in rows}
                for name in self._names:
                    if name in leading:
                        held[name] = now
                    self.idle[name] = max(self.idle[name], now - held[name])

    def stop(self) -> dict[str, float]:
        self._ending.set()
        self.join()
        return self.idle


class Listener(threading.Thread):
    """Somebody who follows the log by our own client, wherever it is told."""

    def __init__(self, here: Any, verb: str) -> None:
        super().__init__(name="listener", daemon=True)
        self._here, self._verb = here, verb
        self.heard: list[str] = []

    def run(self) -> None:
        with suppress(RuntimeError):  # the client is closed at the end
            for _, event in self._here.events(verb=self._verb):
                self.heard.append(event.id)


class Held:
    """A job that ends when it is told to."""

    def __init__(self, made: Town, here: Any, name: str) -> None:
        self._here, self._word = here, made.folder / f"{name}.end"
        wait = f"while [ ! -e {self._word} ]; do sleep 0.2; done"
        self.job = here.jobs.submit(f'sh -c "{wait}"', name=name, project="fraud", **SMALL)
        until(lambda: here.jobs.show(self.job.ref), lambda one: one.state == "running")

    def release(self) -> Any:
        """Tell it, and see how it ended."""
        self._word.touch()
        return until(lambda: self._here.jobs.show(self.job.ref), lambda one: one.over)


class Submitter(threading.Thread):
    """Somebody who asks for small jobs by our own client, one after the other."""

    def __init__(self, here: Any, every_s: float) -> None:
        super().__init__(name="submitter", daemon=True)
        self._here, self._every_s, self._ending = here, every_s, threading.Event()
        self.jobs: list[Any] = []
        self.failed: list[str] = []

    def run(self) -> None:
        while not self._ending.wait(self._every_s):
            try:
                name = f"small-{len(self.jobs) + len(self.failed)}"
                self.jobs.append(self._here.jobs.submit("true", name=name, project="fraud", **SMALL))
            except RuntimeError:  # the client is closed at the end
                return
            except falaj.FalajError as error:
                self.failed.append(f"{time.time():.2f} {error}")

    def stop(self) -> None:
        self._ending.set()
        self.join(60)
