"""Two versions side by side, rolled forward, back and forward again under load, and nobody notices."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.ref import Ref
from tests.jobs.lab import until
from tests.servers.process import Missing
from tests.servers.seaweed import SeaweedServer
from tests.stories.upgrade_ground import NEXT, Held, Listener, Submitter, Town, Watched, town
from tests.stories.upgrade_load import Load, Mixed, Told

PER_S = 25.0
IDLE_S = 5.0
"""So long a loop may be nobody's; the lease of one that was killed lasts three times as long."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_versions_are_rolled_under_load_and_no_request_fails(
    tmp_path: Path, new_postgres: Callable[[], str], s3_server: SeaweedServer
) -> None:
    try:
        with town(tmp_path, new_postgres(), s3_server) as made:
            _story(made)
    except Missing as missing:
        pytest.skip(str(missing))


def _story(made: Town) -> None:
    here, omar = made.client(made.people.mona), made.client(made.omar)
    here.track.create("experiment:fraud/loss")
    run, blob = here.track.start("experiment:fraud/loss").ref, here.store.put("blob:fraud/sample", b"x" * 2000)
    watched, heard = Watched(made.store), Listener(omar, "track.log")
    asked = Submitter(made.client(made.people.mona), 2.0)
    load = Load({role: made.address(role) for role in ("api", "gateway")}, made.ca, PER_S,
                Mixed(made.people.mona, str(run), str(blob)))  # fmt: skip
    for thread in (watched, heard, asked, load):
        thread.start()
    through = Held(made, here, "through")
    made.roll(made.newer)
    assert _versions(made) == {NEXT}
    assert "the store has" in _check(made)
    back = Held(made, here, "back")
    made.roll(made.older)
    assert _versions(made) == {falaj.__version__}
    ended = back.release()
    made.roll(made.newer)
    asked.stop()
    told = load.stop()
    idle = watched.stop()

    (made.folder / "failed").write_text("\n".join(told.failed))
    assert told.failed == [], told.summary()
    assert asked.failed == []
    assert set(made.codes) == {0}
    assert max(idle.values()) < IDLE_S, idle
    assert told.asked >= PER_S * told.seconds * 0.9
    jobs = [ended, through.release(), *(until(lambda: here.jobs.show(one.ref), _over) for one in asked.jobs)]  # noqa: B023
    assert {(one.state, len(one.attempts)) for one in jobs} == {("succeeded", 1)}
    with closing(made.house()) as house, house.ledger.read(house.system()) as tx:
        # Made by the newer version, ended by the older, which does not know the field.
        assert tx.need(Ref.parse("job:fraud/back"), tenant="bank").body["shade"] == "new"
    _effects(here, told, str(run))
    until(lambda: len(heard.heard), lambda num: num >= len(told.effects["log"]))
    assert len(heard.heard) == len(set(heard.heard)) == len(told.effects["log"])
    pack = made.folder / "evidence.zip"
    pack.write_bytes(omar.audit.export().read())
    assert omar.audit.verify(pack).ok


def _effects(here: Any, told: Told, run: str) -> None:
    """What was acknowledged is there, and is there once."""
    points, after = [], ""
    while True:
        page = here.track.history(run, "loss", after=after, limit=10_000)
        points += [point.step for point in page.points]
        after = page.next
        if not after:
            break
    assert sorted(points) == sorted(int(step) for step in told.effects["log"])
    names, after = [], ""
    while True:
        listing = here.store.list(project="fraud", after=after, limit=1000)
        names += [str(entry.ref) for entry in listing.entries]
        after = listing.next
        if not after:
            break
    assert sorted(name for name in names if "/b" in name) == sorted(f"{name}@v1" for name in told.effects["put"])


def _versions(made: Town) -> set[str]:
    """Of all four, as each of them tells."""
    here = made.client(made.people.admin)
    seen = until(lambda: here.get("/status")["replicas"], lambda all_: len(all_) == 4)
    return {one["version"] for one in seen}


def _check(made: Town) -> str:
    """What the version before says of going back."""
    known = {**made.settings, **made.older, "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-m", "falaj", "upgrade", "check", "--at", str(made.home)]
    done = subprocess.run(words, env=known, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _over(one: Any) -> bool:
    return bool(one.over)
