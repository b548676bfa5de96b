"""kill -9 while runs log, on both engines; and the same desk over the wire."""

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import FalajError
from falaj.server import LocalClient, Server, load_settings
from falaj.track.offline import Recorder
from falaj.track.records import Metric
from tests.people import enroll, enroll_tenant
from tests.replica import Replica

EXPERIMENT = "experiment:default/scoring"


def hire(replica: Replica) -> str:
    """The token of somebody who may work."""
    admin = replica.as_()
    boss = enroll_tenant(admin, "bank", "fatima")
    token: str = enroll(replica.as_(boss), "amal", ("data-scientist",), jurisdiction="AE")
    return token


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_what_was_acknowledged_is_there_after_kill_9(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("new_postgres")() if engine == "postgresql" else "sqlite:{home}/ledger.db"
    acknowledged = dict.fromkeys(range(4), -1)
    with Replica(tmp_path, {"FALAJ_STORE": store}) as replica:
        token = hire(replica)
        replica.as_(token).track.create(EXPERIMENT)
        runs = [replica.as_(token).track.start(EXPERIMENT).ref for _ in range(4)]
        enough = threading.Semaphore(0)

        def log(number: int, here: Any) -> None:
            try:
                for step in range(10**6):
                    here.track.log(
                        runs[number], metrics=(Metric("a", float(step), 1.0, step),), params={f"p{step}": "x"}
                    )
                    acknowledged[number] = step
                    enough.release()
            except FalajError:
                return

        threads = [threading.Thread(target=log, args=(n, replica.as_(token))) for n in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(80):
            assert enough.acquire(timeout=60)
        replica.kill()
        for thread in threads:
            thread.join()
    house = Server(load_settings(str(tmp_path), {"store": store}))
    here = LocalClient(house, house.authenticate(token))
    for number, run in enumerate(runs):
        last = acknowledged[number]
        points = [point.step for point in here.track.history(run, "a").points]
        shown = here.track.show(run)
        assert points[: last + 1] == list(range(last + 1))
        assert len(points) <= last + 2
        assert set(shown.params) >= {f"p{step}" for step in range(last + 1)}
        assert last < 0 or shown.metrics["a"].step >= last
    assert len(here.track.list().runs) == 4
    house.close()


def test_the_desk_over_the_wire(tmp_path: Path) -> None:
    with Replica(tmp_path / "home") as replica:
        here = replica.as_(hire(replica))
        here.track.create(EXPERIMENT, title="Scoring")
        run = here.track.start(EXPERIMENT, params={"lr": "0.1"}).ref
        here.track.log(
            run,
            metrics=(Metric("loss", math.nan, 1.0, 1), Metric("loss", math.inf, 1.0, 2), Metric("loss", 0.5, 1.0, 3)),
        )
        points = here.track.history(run, "loss").points
        assert math.isnan(points[0].number)
        assert [point.number for point in points[1:]] == [math.inf, 0.5]
        assert here.track.list(where="metrics.loss = 0.5").runs == (here.track.show(run),)
        here.track.attach(run, "a/b.txt", b"hello")
        assert here.track.fetch(run, "a/b.txt").read() == b"hello"
        assert str(here.track.register(run, "a", "model:default/m")) == "model:default/m@v1"
        with Recorder(tmp_path / "offline", experiment=EXPERIMENT) as recorder:
            recorder.log({"x": 1.0}, step=1)
            for name in ("full", "empty"):
                (tmp_path / name).write_bytes(name.encode() if name == "full" else b"")
                recorder.attach(tmp_path / name)
        (synced,) = here.track.sync(str(tmp_path / "offline"))
        assert (synced.state, synced.files) == ("new", 2)
        assert here.track.fetch(synced.run, "full").read() == b"full"
        (again,) = here.track.sync(str(tmp_path / "offline"))
        assert (again.state, again.files) == ("same", 0)
        here.track.delete(synced.run)
        (gone,) = here.track.sync(str(tmp_path / "offline"))
        assert gone.state == "deleted"
        assert "0.5" in here.track.plot("loss", (run,), width=30)
        assert here.track.end(run).status == "finished"
