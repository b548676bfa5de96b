"""Outages of PostgreSQL or S3 for a minute or two: calls that need the server fail, everything else goes on."""

import time
from collections.abc import Callable
from contextlib import closing

import httpx

from falaj.core.errors import FalajError
from tests.servers.process import Server, wait_until
from tests.soak.client import RETRYABLE
from tests.soak.grounds import Ground
from tests.soak.links import OPEN, SILENT

SETTLES_S = 20.0
"""Calls that began before the platform noticed the outage may wait this long for their time-outs."""
CALL_S = 30.0
"""A call that PostgreSQL does not answer has ended with an error after this long."""


def hang(ground: Ground, server: str, seconds: float, report: Callable[[str], None]) -> str:
    """Keep every connection to `server` open and silent for `seconds`, and watch the platform meanwhile."""
    for link in ground.links[server]:
        link.set(SILENT)
    try:
        calls = watch(ground, server, seconds, report)
    finally:
        for link in ground.links[server]:
            link.set(OPEN)
    return f"silent {seconds:.0f} s, {calls} calls meanwhile"


def take_away(ground: Ground, server: str, seconds: float, report: Callable[[str], None]) -> str:
    """Kill `server`, watch the platform for `seconds`, and start the server again on the same data."""
    ground.servers[server].kill()
    try:
        calls = watch(ground, server, seconds, report)
    finally:
        start_again(ground.servers[server])
    return f"away {seconds:.0f} s, {calls} calls meanwhile"


def start_again(server: Server) -> None:
    """Start a killed server; what it held of the machine, such as its port, may take a moment to be free."""

    def has_started() -> bool:
        try:
            server.start()
        except Exception:  # noqa: BLE001 - whatever it was, the next try shows whether it lasts
            return False
        return True

    wait_until(has_started, 60)


def watch(ground: Ground, server: str, seconds: float, report: Callable[[str], None]) -> int:
    """Call every replica until `seconds` are over; report what the outage must not break. Gives the number of calls."""
    check = check_work_without_objects if server == "s3" else check_calls_end
    began, calls = time.monotonic(), 0
    time.sleep(min(SETTLES_S, seconds / 3))
    while time.monotonic() - began < seconds:
        for number in range(len(ground.ups)):
            problem = check(ground, number)
            calls += 1
            if problem:
                report(f"{time.monotonic() - began:.0f} s after {server} had gone, replica {number}: {problem}")
        time.sleep(2)
    return calls


def check_work_without_objects(ground: Ground, number: int) -> str:
    """Track a run, list people and jobs, and ask for readiness; what failed, or nothing."""
    try:
        if httpx.get(f"{ground.ups[number].url}/ready", timeout=5, trust_env=False).status_code != 200:
            return "it is not ready"
        with closing(ground.at("mona", number, timeout_s=CALL_S)) as client:
            run = client.track.start("experiment:soak/all").ref
            client.track.log(run, params={"during": "an outage"})
            client.track.end(run)
            client.jobs.list(limit=5)
        with closing(ground.at("fatima", number, timeout_s=CALL_S)) as client:
            if not client.people.list():
                return "it lists no people"
    except (httpx.HTTPError, FalajError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def check_calls_end(ground: Ground, number: int) -> str:
    """Without its ledger a replica still answers /health, and calls end with an error that says to try again."""
    try:
        if httpx.get(f"{ground.ups[number].url}/health", timeout=5, trust_env=False).status_code != 200:
            return "it is not healthy"
        with closing(ground.at("mona", number, timeout_s=CALL_S)) as client:
            client.track.start("experiment:soak/all")
    except FalajError as error:
        return "" if error.code in RETRYABLE else f"a call failed with {error.code}: {error}"
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    return "a call was acknowledged without PostgreSQL"
