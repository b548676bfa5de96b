"""Features through the whole platform, as users call it: defined, ingested, filled, joined and read.

python features_house.py prepare FOLDER         the three views, their rows ingested
python features_house.py history FOLDER         a training set of them
python features_house.py fill FOLDER URL 1000   a view of so many rows, then its online store at URL filled
python features_house.py read FOLDER URL        reads of it, in turns
python features_house.py truth FOLDER URL       the cases in which stores go wrong
"""

import contextlib
import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from features_ground import CASES, KEYS, TIME, TTL_DAYS, VIEWS, checksum, every_name, names, report, turns

import falaj

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.people import enroll, enroll_tenant

HEAD = """
from falaj.features import Entity, Feature, Service, Source, view
user = Entity("bench/user", keys={"user_id": "int64"})
"""
VIEW = """
{view} = view("bench/{view}", user, Source("{source}", event="event", created="created"), ttl="{ttl}d",
              features=[Feature(name, "float64") for name in {names}])
"""


def define(here: Any, folder: Path, views: dict[str, list[str]], service: str, source: str = "") -> None:
    """Views over datasets of their names (or pushed to), and a service of all of them."""
    text = HEAD
    for view, columns in views.items():
        text += VIEW.format(view=view, source=source or f"dataset:bench/{view}", ttl=TTL_DAYS, names=columns)
    path = folder / "definitions.py"
    path.write_text(text + f'service = Service("bench/{service}", [{", ".join(views)}])\n')
    here.features.apply(str(path))


def publish(here: Any, name: str, path: Path) -> None:
    """A file as a dataset."""
    at = path.parent / f"{name}.published"
    at.mkdir()
    path.rename(at / path.name)
    (path.parent / path.name).symlink_to(at / path.name)
    here.catalog.publish(f"dataset:bench/{name}", str(at))


@contextlib.contextmanager
def house(folder: Path, url: str = "") -> Iterator[Any]:
    """The platform in this process."""
    with falaj.connect(str(folder / "home"), **({"online": url} if url else {})) as here:
        yield here


def prepare(folder: Path) -> None:
    """Once, as ingestion does it."""
    with house(folder) as here:

        def work() -> None:
            for view in VIEWS:
                publish(here, view, folder / f"{view}.parquet")
            define(here, folder, {view: names(view) for view in VIEWS}, "all")
            for view in VIEWS:
                here.features.ingest(f"view:bench/{view}")

        report(work)


def history(folder: Path) -> None:
    """A training set, to Arrow."""
    with house(folder) as here:

        def work() -> Any:
            labels = pq.read_table(folder / "labels.parquet")
            return here.features.table(labels, "service:bench/all", moment="event_timestamp")

        report(work, checksum)


def wide(here: Any, folder: Path, size: int) -> None:
    """A view of twenty features, one row a user, a day old; ingested and not yet online."""
    day = pa.scalar(dt.datetime.now(dt.UTC) - dt.timedelta(days=1), TIME)
    columns: dict[str, Any] = {"user_id": np.arange(size), **dict.fromkeys(("event", "created"), pa.repeat(day, size))}
    columns |= {name: np.random.default_rng(1).normal(size=size) for name in every_name()}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / "wide.parquet")
    publish(here, "wide", folder / "wide.parquet")
    define(here, folder, {"wide": every_name()}, "wide")
    here.features.ingest("view:bench/wide")


def fill(folder: Path, url: str, count: str) -> None:
    """Only the filling of the online store is counted."""
    with house(folder, url) as here:
        wide(here, folder, int(count))
        report(lambda: here.features.materialize("view:bench/wide", ingest_first=False))


@contextlib.contextmanager
def served(folder: Path, size: int) -> Iterator[tuple[str, str]]:
    """`falaj up` with the view online; gives its port and the token of somebody who may read."""
    from tests.replica import Replica

    folder.mkdir()
    limits = {"FALAJ_LIMITS_REQUESTS_PER_S": "1e6", "FALAJ_LIMITS_BURST": "1000000"}
    with Replica(folder / "home", limits) as server:
        boss = enroll_tenant(server.as_(), "bank", "fatima")
        token = enroll(server.as_(boss), "amal", ("data-scientist",), jurisdiction="AE")
        here = server.as_(token)
        wide(here, folder, size)
        here.features.materialize("view:bench/wide", ingest_first=False)
        yield server.url.rpartition(":")[2], token


def read(folder: Path, url: str) -> None:
    """Ten entities, twenty features, everything by name with its status."""
    with house(folder, url) as here, here.features.reader("service:bench/wide") as reader:
        found = reader.read(KEYS).to_dict()
        if len(found) < len(every_name()):
            raise SystemExit(f"only {list(found)} came back")
        turns(lambda: reader.read(KEYS).to_dict())


def truth(folder: Path, url: str) -> None:
    """The cases of `CASES`, pushed in their order; then read online, and offline as of now."""
    now = dt.datetime.now(dt.UTC)
    with house(folder, url) as here:
        define(here, folder, {"truth": ["x"]}, "truth", source="push")
        for user, event, created, value in CASES:
            times = {"event": now - dt.timedelta(hours=event), "created": now - dt.timedelta(hours=created)}
            row = {"user_id": [user], "x": [value], **{name: pa.array([at], TIME) for name, at in times.items()}}
            here.features.push("view:bench/truth", pa.table(row))
        with here.features.reader("service:bench/truth") as reader:
            online = reader.read({"user_id": [0, 1, 2, 3]}).to_dict()["x"]
        labels = pa.table({"user_id": range(4), "event_timestamp": pa.array([now] * 4, TIME)})
        offline = here.features.table(labels, "service:bench/truth", moment="event_timestamp")["x"].to_pylist()
    report(lambda: None, lambda _: {"online": list(online), "offline": offline})


if __name__ == "__main__":
    acts: dict[str, Any] = {act.__name__: act for act in (prepare, history, fill, read, truth)}
    acts[sys.argv[1]](Path(sys.argv[2]), *(word for word in sys.argv[3:] if not word.startswith("--")))
