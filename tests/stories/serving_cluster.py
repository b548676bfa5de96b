"""What stories of serving on a cluster stand on: platforms and gateways on PostgreSQL, S3 and Redis, as processes."""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

import falaj
from tests.infer import models
from tests.people import enroll, enroll_tenant
from tests.stories.serving_ground import Platform

NAME = "fraud.score"
Settings = Mapping[str, str]


def engines(request: pytest.FixtureRequest, home: Path) -> dict[str, str]:
    """The settings of platforms that share a store, as variables. Each has a home of its own; the keys are shared."""
    server, redis = request.getfixturevalue("s3_server"), request.getfixturevalue("redis_server")
    bucket = request.getfixturevalue("new_s3")().url
    return {
        **server.environment,
        "FALAJ_STORE": request.getfixturevalue("new_postgres")(),
        "FALAJ_BLOBS": f"{bucket}?endpoint={server.endpoint}&region=us-east-1&allow_http=true",
        "FALAJ_ONLINE": f"{redis.url}?prefix=t{uuid.uuid4().hex[:8]}",
        "FALAJ_SECRETS": f"file:{home}/keys",
        "FALAJ_GATEWAY": "",
    }


class People(NamedTuple):
    """Tokens: of the house, of the tenant's own administrator, and of somebody who deploys."""

    admin: str
    boss: str
    mona: str


class Up:
    """`falaj up` as a process. `people` are told by the first one of a store."""

    def __init__(self, home: Path, settings: Settings, *flags: str, listen: str = "127.0.0.1:0") -> None:
        words = ["up", "--at", str(home), "--listen", listen, "--log", "ERROR", *flags]
        self.process = _begun(words, settings)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.ca = str(home / "tls" / "ca.pem") if "--tls" in flags else ""

    def people(self, **clusters: str) -> People:
        """A tenant with somebody who deploys; this machine, and other clusters, take their jobs."""
        assert self.process.stdout is not None
        first = next(line.strip() for line in self.process.stdout if line.startswith("  "))
        with closing(self.client(first)) as admin:
            boss = enroll_tenant(admin, "bank", "fatima")
            admin.clusters.change("local", {"tenants": "bank"})
            for name, address in clusters.items():
                admin.clusters.add(name, address, more={"tenants": "bank"})
        with closing(self.client(boss)) as here:
            mona = enroll(here, "mona", ("ml-engineer", "data-scientist"), jurisdiction="AE")
        return People(first, boss, mona)

    def client(self, token: str) -> Any:
        """Somebody's client."""
        return falaj.connect(self.url, token=token, **self._trusts())

    def platform(self, home: Path, token: str) -> Platform:
        """Somebody's client, with what stories ask of one."""
        return Platform(home, self.url, token, **self._trusts())

    def _trusts(self) -> dict[str, str]:
        return {"ca": self.ca} if self.ca else {}

    def kill(self) -> None:
        """As a machine that is gone."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """As somebody who stops it, if it is still there."""
        _ended(self.process)


class Door:
    """`falaj gateway` as a process: `http` (a URL) and `grpc` (host:port)."""

    def __init__(self, home: Path, settings: Settings, *flags: str, host: str = "127.0.0.1", port: int = 0) -> None:
        words = ["--at", str(home), "--json", "gateway", "--listen", f"{host}:{port}", "--grpc", f"{host}:0"]
        self.process = _begun([*words, "--log", "ERROR", *flags], settings)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.http, self.grpc = str(said["http"]), str(said["grpc"])

    @property
    def infer(self) -> str:
        """Where the endpoint is called by HTTP."""
        return f"{self.http}/v2/models/{NAME}/infer"

    def kill(self) -> None:
        """As a machine that is gone."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """SIGTERM: it answers what it was asked."""
        _ended(self.process)


@contextmanager
def running(*started: Any) -> Iterator[None]:
    """End these afterwards, the last one first."""
    try:
        yield
    finally:
        for one in reversed(started):
            one.end()


def _begun(words: list[str], settings: Settings) -> "subprocess.Popen[str]":
    known = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
    command = [sys.executable, "-m", "falaj", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=known | dict(settings))


def _ended(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.terminate()
        code = process.wait(60)
        assert code == 0, code
    assert process.stdout is not None
    process.stdout.close()


Ask = Callable[[np.ndarray[Any, Any]], Any]


def asks_http(door: Door, token: str, **tls: Any) -> tuple[Ask, Callable[[], None]]:
    """A client of Triton's over HTTP, and how it is closed."""
    client = triton_http.InferenceServerClient(door.http.partition("//")[2], **tls)
    headers = {"Authorization": f"Bearer {token}"}

    def ask(x: np.ndarray[Any, Any]) -> Any:
        given = triton_http.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        return client.infer(NAME, [given], headers=headers).as_numpy("y")

    return ask, client.close


def asks_grpc(door: Door, token: str, **tls: Any) -> tuple[Ask, Callable[[], None]]:
    """The same over gRPC."""
    client = triton_grpc.InferenceServerClient(door.grpc, **tls)
    headers = {"authorization": f"Bearer {token}"}

    def ask(x: np.ndarray[Any, Any]) -> Any:
        given = triton_grpc.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        return client.infer(NAME, [given], headers=headers).as_numpy("y")

    return ask, client.close


class Checked:
    """Triton's clients that call all the time, and look at every number of every answer."""

    def __init__(self, *opening: Callable[[], tuple[Ask, Callable[[], None]]]) -> None:
        self.right = 0
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call, args=one) for one in enumerate(opening)]

    def __enter__(self) -> "Checked":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int, opening: Callable[[], tuple[Ask, Callable[[], None]]]) -> None:
        chance = np.random.default_rng(number)
        ask, close = opening()
        while not self._ended.is_set():
            x = chance.standard_normal((int(chance.integers(1, 5)), 32)).astype(np.float32)
            try:
                y = ask(x)
            except (InferenceServerException, OSError) as error:
                with self._lock:
                    self.failed.append(repr(error))
                continue
            with self._lock:
                if np.allclose(y, models.mlp_of(x), rtol=1e-4, atol=1e-5):
                    self.right += 1
                else:
                    self.wrong.append(f"{x!r} {y!r}")
        close()
