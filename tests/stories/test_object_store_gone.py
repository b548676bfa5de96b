"""The object store dies, or hangs: replicas stay in the balancer, what needs no objects works, what does fails fast."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from falaj.core.errors import FalajError, Unavailable
from tests.people import enroll
from tests.replica import Replica
from tests.servers.haproxy import HaproxyServer, Pool
from tests.servers.process import free_ports, wait_until
from tests.servers.seaweed import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAMES = {"one", "two"}
WAIT_S = 90.0


@dataclass(frozen=True)
class Ground:
    """Two replicas on one store and one bucket, and the balancer before them."""

    objects: SeaweedServer
    balancer: HaproxyServer
    admin: Any
    sara: Any
    omar: Any
    token: str
    listens: tuple[str, ...]

    @property
    def url(self) -> str:
        return f"http://{self.balancer.address('api')}"

    def answers(self) -> list[bool]:
        """Whether the blob store answers each replica, as that replica says."""
        headers = {"authorization": f"Bearer {self.token}"}
        replies = [httpx.get(f"http://{address}/status", headers=headers, trust_env=False) for address in self.listens]
        health = [{each["name"]: each["answers"] for each in reply.json()["dependencies"]} for reply in replies]
        return [dependencies["blobs"] for dependencies in health]


@pytest.fixture
def ground(tmp_path: Path, postgres_url: str) -> Iterator[Ground]:
    ports = free_ports()
    listens, front = {name: f"127.0.0.1:{next(ports)}" for name in sorted(NAMES)}, next(ports)
    balancer = HaproxyServer({"api": Pool("/ready", listens, secure=False)}, {"api": front})
    with SeaweedServer() as objects, balancer:
        bucket = objects.create_bucket()
        env = {
            **objects.environment,
            "FALAJ_STORE": postgres_url,
            "FALAJ_BLOBS": f"{bucket.url}?endpoint={objects.endpoint}&region=us-east-1&allow_http=true",
            "FALAJ_HOSTS": f"127.0.0.1:{front}",
            "FALAJ_GATEWAY": "",
        }
        home = tmp_path / "home"
        with (
            Replica(home, env, listen=listens["one"]) as one,
            Replica(home, env, first=False, listen=listens["two"]) as two,
        ):
            two.token, one.url = one.token, f"http://127.0.0.1:{front}"
            wait_until(lambda: balancer.up("api") == NAMES, WAIT_S)
            admin = one.as_()
            sara = one.as_(enroll(admin, "sara", ("data-scientist",)))
            omar = one.as_(enroll(admin, "omar", ("auditor",)))
            yield Ground(objects, balancer, admin, sara, omar, one.token, tuple(listens.values()))


def put(ground: Ground, name: str) -> None:
    ground.sara.store.put(f"blob:main/{name}", b"bytes of " + name.encode())


def check_work(ground: Ground, name: str) -> None:
    """What needs no object: people, tracking, the queue of jobs, the log, and the console."""
    assert "sara" in {person.name for person in ground.admin.people.list()}
    ground.sara.track.create(f"experiment:main/{name}")
    run = ground.sara.track.start(f"experiment:main/{name}").ref
    ground.sara.track.log(run, params={"rate": "0.1"})
    ground.sara.track.end(run)
    assert ground.sara.jobs.list() is not None
    assert ground.omar.audit.log(limit=1).entries
    assert httpx.get(f"{ground.url}/console/sign-in", trust_env=False, follow_redirects=True).status_code == 200


def refused(ground: Ground) -> Callable[[], bool]:
    """Whether a put is refused at once, with the reason; before that it may wait for its own time-out."""

    def look() -> bool:
        try:
            put(ground, "refused")
        except Unavailable as error:
            return "the blob store has not answered for" in error.message
        except FalajError:
            return False
        return False

    return look


@pytest.mark.parametrize("ending", ["killed", "stopped"])
def test_the_platform_works_on_without_its_objects(ground: Ground, ending: str) -> None:
    put(ground, "before")
    if ending == "killed":
        ground.objects.kill()
    else:
        os.kill(ground.objects.pid, signal.SIGSTOP)
    wait_until(lambda: ground.answers() == [False, False], WAIT_S)
    check_work(ground, "during")
    wait_until(refused(ground), WAIT_S)
    assert ground.balancer.up("api") == NAMES
    assert httpx.get(f"{ground.url}/ready", trust_env=False).json() == {"ready": True}
    if ending == "killed":
        ground.objects.start()
    else:
        os.kill(ground.objects.pid, signal.SIGCONT)
    wait_until(lambda: ground.answers() == [True, True], WAIT_S)
    put(ground, "after")
    assert ground.sara.store.get("blob:main/before").read() == b"bytes of before"
    check_work(ground, "after")
