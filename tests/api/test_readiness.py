"""/ready says whether a replica can serve anything, from background checks; /status says which dependency fails."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from falaj.api import app
from falaj.api.http_server import HttpServer
from falaj.core import dependency_health
from falaj.core.dependency_health import DependencyMonitor
from falaj.core.errors import FalajError, Unavailable
from falaj.core.settings import RequestLimits
from tests.api.conftest import FREE
from tests.api.small import AMAL_TOKEN, SmallHouse, serving
from tests.servers.process import wait_until


@dataclass
class Dependency:
    """A check that passes, fails or hangs."""

    failing: FalajError | None = None
    hanging: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.hanging.is_set():
            self.released.wait(60)
        if self.failing is not None:
            raise self.failing


class Release(threading.Event):
    """Says when a call begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return super().wait(timeout)


@contextmanager
def serving_with(limits: RequestLimits = FREE, **dependencies: Dependency) -> Iterator[tuple[HttpServer, httpx.Client]]:
    house = SmallHouse(limits=limits, store="postgresql://nowhere/none")  # whose calls do not run on the event loop
    house.dependencies = DependencyMonitor({name: part.check for name, part in dependencies.items()})
    house.dependencies.start()
    headers = {"authorization": f"Bearer {AMAL_TOKEN}"}
    with serving(house) as server:
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20) as http:
            yield server, http
        for dependency in dependencies.values():
            dependency.released.set()
        house.dependencies.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_INTERVAL_S", "RECHECK_INTERVAL_S"):
        monkeypatch.setattr(dependency_health, name, 0.02)


def ready(http: httpx.Client) -> Callable[[], int]:
    return lambda: http.get("/ready").status_code


def test_a_replica_without_its_blob_store_is_ready_and_says_what_fails() -> None:
    blobs = Dependency(failing=Unavailable("the bucket of the blob store does not exist", "create it"))
    with serving_with(store=Dependency(), blobs=blobs) as (_, http):
        assert http.get("/ready").json() == {"ready": True}
        status = http.get("/status").json()
        assert status["ready"] is True
        states = {dependency["name"]: dependency for dependency in status["dependencies"]}
        assert (states["store"]["answers"], states["blobs"]["answers"]) == (True, False)
        assert states["blobs"]["problem"] == "the bucket of the blob store does not exist"
        assert http.post("/v1/echo/nothing").status_code == 200


def test_details_need_a_token() -> None:
    with serving_with(store=Dependency()) as (server, _):
        assert httpx.get(f"{server.url}/status", trust_env=False).status_code == 401
        assert httpx.get(f"{server.url}/ready", trust_env=False).json() == {"ready": True}


@pytest.mark.parametrize("name", app.ESSENTIAL_DEPENDENCIES)
def test_without_its_store_or_its_schema_it_is_not_ready(name: str) -> None:
    essential = Dependency()
    with serving_with(**{"store": Dependency(), name: essential}) as (_, http):
        assert ready(http)() == 200
        essential.failing = Unavailable("gone")
        wait_until(lambda: ready(http)() == 503, 20)
        essential.failing = None
        wait_until(lambda: ready(http)() == 200, 20)


def test_a_blob_store_that_hangs_holds_up_no_answer() -> None:
    blobs = Dependency()
    blobs.hanging.set()
    with serving_with(store=Dependency(), blobs=blobs) as (_, http):
        assert http.get("/ready").json() == {"ready": True}
        (problem,) = [each for each in http.get("/status").json()["dependencies"] if not each["answers"]]
        assert (problem["name"], problem["problem"]) == ("blobs", "does not answer")


def test_calls_end_with_an_error_while_the_ledger_store_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LEDGER_SILENCE_LIMIT_S", 0.2)
    store, calls = Dependency(), list[httpx.Response]()
    with serving_with(store=store) as (server, http):
        release = Release()
        server.app.house.echo.release = release  # type: ignore[attr-defined]
        waiting = threading.Thread(target=lambda: calls.append(http.post("/v1/echo/wait")))
        waiting.start()
        assert release.awaited.wait(20)
        store.hanging.set()
        waiting.join(20)
        assert (calls[0].status_code, calls[0].json()["message"]) == (503, "no answer in time")
        refused = http.post("/v1/echo/nothing")
        assert (refused.status_code, "ledger store has not answered" in refused.json()["message"]) == (503, True)
        assert (http.get("/ready").status_code, http.get("/health").status_code) == (503, 200)
        store.hanging.clear()
        store.released.set()
        release.set()
        wait_until(lambda: http.post("/v1/echo/nothing").status_code == 200, 20)


def test_a_late_answer_to_a_call_without_a_body_does_not_blame_its_body() -> None:
    limits = RequestLimits(requests_per_s=1e6, burst=1_000_000, denials_per_s=1e6, timeout_s=0.2)
    with serving_with(limits, store=Dependency()) as (server, http):
        answer = http.post("/v1/echo/wait")
        assert (answer.status_code, answer.json()["message"]) == (503, "no answer in time")
        slow = threading.Event()
        server.app.gate.whois = lambda token: slow.wait(20)  # type: ignore[assignment,return-value]
        server.app.gate.forget()
        stranger = {"authorization": "Bearer falaj_somebody-0000000000000"}
        for late in (http.get("/status", headers=stranger), http.post("/v1/echo/nothing", json={}, headers=stranger)):
            assert (late.status_code, late.json()["message"]) == (503, "no answer in time")
        slow.set()
        server.app.house.echo.release.set()  # type: ignore[attr-defined]
