"""A ground for each test: its own house, replicas and gateway."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.stand_in import Ground, Replica


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Callable[..., Ground]]:
    """`ground(replicas=2, per_s=5)` is open; replicas are of revision 1."""
    made: list[Ground] = []

    def make(replicas: int = 1, **rules: Any) -> Ground:
        one = Ground(tmp_path / f"house{len(made)}", **{"sample": 0.0, **rules})
        made.append(one)
        one.replicas = [Replica(one.loop, 1, f"replica-{number}") for number in range(replicas)]
        one.names = [one.add(replica) for replica in one.replicas]
        one.open()
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def asking() -> Iterator[Callable[..., httpx.Client]]:
    """A client of a gateway, as somebody."""
    made: list[httpx.Client] = []

    def make(ground: Ground, name: str = "amal") -> httpx.Client:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        headers = ground.headers(name) if name else {}
        client = httpx.Client(base_url=ground.doors.http, headers=headers, trust_env=False, timeout=30, limits=limits)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
