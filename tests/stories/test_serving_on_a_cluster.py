"""Serving where a bank serves: several platforms and gateways on PostgreSQL, S3 and Redis, killed and spoken to by TLS.

Nothing here knows more of the platform than its callers do: processes, addresses, tokens, and Triton's own clients.
"""

import os
import signal
import socket
import ssl
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from falaj.core.ref import Ref
from falaj.server import Server, load_settings
from tests.infer import models
from tests.jobs.lab import until
from tests.serve.laptop import ready
from tests.stories.serving_cluster import NAME, Checked, Door, Up, asks_grpc, asks_http, engines, running
from tests.stories.serving_ground import SCORE, SMALL, Callers, published, slow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_platform_and_a_replica_are_killed_under_load(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    settings = engines(request, tmp_path)
    first = Up(tmp_path / "one", settings)
    people = first.people()
    second, door = Up(tmp_path / "two", settings), Door(tmp_path / "three", settings)
    with running(first, second, door):
        bank = second.platform(tmp_path, people.mona)
        with closing(bank.here):
            bank.here.serve.deploy(SCORE, bank.model(), least=2, most=2, **SMALL)
            names = ready(bank.until(lambda view: len(ready(view)) == 2))
            asking = [partial(asks_http, door, people.mona), partial(asks_grpc, door, people.mona)] * 2
            with Callers(door.infer, people.mona, threads=2) as callers, Checked(*asking) as checked:
                until(lambda: (checked.right, sum(callers.answers.values())), lambda seen: min(seen) > 200)
                first.kill()
                os.kill(bank.pid(names[0]), signal.SIGKILL)
                healed = bank.until(lambda view: len(set(ready(view)) - {names[0]}) == 2)
                right = checked.right
                until(lambda: checked.right, lambda seen: seen > right + 200)
            assert healed.state == "ready"
            assert checked.wrong == []
            asked = checked.right + len(checked.failed) + sum(callers.answers.values()) + len(callers.broken)
            assert len(checked.failed) + callers.failed() < asked / 1000, (asked, checked.failed, callers.answers)
            bank.close()


def test_doors_and_replicas_off_loopback_speak_tls(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """With a cluster elsewhere, replicas are reached over the network: by TLS, to the certificate they must have."""
    host, settings = own_address(), engines(request, tmp_path)
    first = Up(tmp_path / "one", settings, "--tls", listen=f"{host}:0")
    off = host != "127.0.0.1"
    people = first.people(**({"far": "slurm:"} if off else {}))
    door = Door(tmp_path / "one", settings, "--tls", host=host)
    with running(first, door):
        bank = first.platform(tmp_path, people.mona)
        with closing(bank.here):
            bank.here.serve.deploy(SCORE, bank.model(), **SMALL)
            bank.until(lambda view: view.state == "ready")
            assert bank.show().url == door.infer.removesuffix("/infer")
            assert door.http.startswith(f"https://{host}:")
            x = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
            opened = (
                asks_http(door, people.mona, ssl=True, ssl_options={"ca_certs": first.ca}),
                asks_grpc(door, people.mona, ssl=True, root_certificates=first.ca),
            )
            for ask, close in opened:
                np.testing.assert_allclose(ask(x), models.mlp_of(x), rtol=1e-4, atol=1e-5)
                close()
            # Off loopback or not: a stranger learns nothing without TLS, and is not believed with another authority.
            with pytest.raises(httpx.HTTPError):
                httpx.get(door.http.replace("https:", "http:") + "/v2/health/ready", trust_env=False)
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                httpx.get(door.http + "/v2/health/ready", trust_env=False)
            assert (spoken(door.http.partition("//")[2], first.ca, "http/1.1"), spoken(door.grpc, first.ca, "h2")) == (
                ("TLSv1.3", "http/1.1"),
                ("TLSv1.3", "h2"),
            )
            with closing(Server(load_settings(str(tmp_path / "four"), as_overrides(settings)))) as house:
                ((_, route),) = house.desks["serve"].routes(house.system()).items()
                (place,) = route.places
            assert (place.host, bool(place.fingerprint)) == (host, off)
            bank.close()


def test_two_gateways_count_together_and_forget_a_token_together(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    settings = engines(request, tmp_path)
    first = Up(tmp_path / "one", settings)
    people = first.people()
    doors = [Door(tmp_path / name, settings) for name in ("two", "three")]
    with running(first, *doors):
        bank, ref = first.platform(tmp_path, people.mona), Ref.parse(SCORE)
        house = Server(load_settings(str(tmp_path / "four"), as_overrides(settings)))
        with closing(bank.here), closing(house), closing(first.client(people.boss)) as boss:
            counts = house.desks["serve"].counts
            bank.here.serve.deploy(SCORE, bank.model(), **SMALL)
            bank.until(lambda view: view.state == "ready")
            began, x = time.time() - 1, np.zeros((1, 32), np.float32)
            for door, times in zip(doors, (70, 50), strict=True):
                ask, close = asks_http(door, people.mona)
                for _ in range(times):
                    ask(x)
                close()
            until(lambda: {one.requests for one in counts.since("bank", ref, began).values()}, {120}.__eq__)
            rows = counts.rows("bank", ref, began)
            by_gateway = {row.gateway: 0 for row in rows}
            for row in rows:
                by_gateway[row.gateway] += row.requests
            assert sorted(by_gateway.values()) == [50, 70]

            # A token that is taken away works nowhere, soon.
            with closing(first.client(people.mona)) as mona:
                taken = mona.people.renew()
            with Timed(doors[0], taken.token) as one, Timed(doors[1], taken.token) as two:
                until(lambda: (one.answered, two.answered), min)
                boss.people.revoke(taken.id)
                revoked = time.monotonic()
                until(lambda: (one.refused, two.refused), all)
            for seen in (one, two):
                assert seen.answered - revoked < 2.0
                assert seen.statuses == {200, 401}

            # Neither gateway has enough for a second replica; both of them together have.
            bank.here.serve.deploy(SCORE, published(bank, slow(tmp_path / "slow")), least=1, most=2, concurrency=4)
            bank.until(lambda view: view.traffic == {"2": 1.0})
            with Callers(doors[0].infer, people.mona, threads=3), Callers(doors[1].infer, people.mona, threads=3):
                view = bank.until(lambda one: len([each for each in one.replicas if each.revision == 2]) == 2)
            assert view.scale.most == 2
            bank.close()


def test_the_address_that_is_shown_is_of_a_gateway_that_lives(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    settings = engines(request, tmp_path)
    first = Up(tmp_path / "one", settings)
    people = first.people()
    stays = Door(tmp_path / "two", settings)
    with running(first, stays):
        bank = first.platform(tmp_path, people.mona)
        with closing(bank.here):
            bank.here.serve.deploy(SCORE, bank.model(), **SMALL)
            for leave in (Door.kill, Door.end):
                other = Door(tmp_path / "three", settings)
                with running(other):
                    assert bank.show().url == other.infer.removesuffix("/infer")
                    leave(other)
                    bank.until(lambda view: view.url == stays.infer.removesuffix("/infer"))
            bank.until(lambda view: view.state == "ready")
            assert bank.here.serve.call(SCORE, {"x": [[0.0] * 32]}, token=people.mona)["y"]
            bank.close()


class Timed:
    """Calls a gateway all the time with one token until it is refused; when it was last answered, by the clock."""

    def __init__(self, door: Door, token: str) -> None:
        self.answered, self.refused = 0.0, False
        self.statuses: set[int] = set()
        self._door, self._token = door, token
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._call)

    def __enter__(self) -> "Timed":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _call(self) -> None:
        with httpx.Client(trust_env=False, headers={"Authorization": f"Bearer {self._token}"}) as client:
            while not (self.refused or self._ended.wait(0.01)):
                status = client.get(f"{self._door.http}/v2/models/{NAME}").status_code
                self.statuses.add(status)
                self.refused = status == 401
                if status == 200:
                    self.answered = time.monotonic()


def own_address() -> str:
    """An address of this machine that others reach it by; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for examples: nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def spoken(address: str, ca: str, protocol: str) -> tuple[str | None, str | None]:
    """The version of TLS and the protocol that a door agrees to."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols([protocol])
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as one,
    ):
        return one.version(), one.selected_alpn_protocol()


def as_overrides(settings: dict[str, str]) -> dict[str, str]:
    """Variables as the arguments they stand for."""
    return {name.removeprefix("FALAJ_").lower(): value for name, value in settings.items() if name.startswith("FALAJ_")}
