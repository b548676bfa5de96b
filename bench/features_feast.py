"""Feast's side of bench/features.py; run in an environment of its own.

python features_feast.py history FOLDER duckdb 1000000      a training set, through one of its offline engines
python features_feast.py materialise FOLDER sqlite 100000   an online store filled
python features_feast.py read FOLDER sqlite                 reads of 10 entities, 20 features, in turns
python features_feast.py truth FOLDER sqlite duckdb         the cases in which stores go wrong
"""

import contextlib
import datetime as dt
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig
from feast.types import Float64
from feast.value_type import ValueType
from features_ground import CASES, KEYS, LABELS, TTL_DAYS, VIEWS, checksum, every_name, names, report, turns

USER = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
TTL = dt.timedelta(days=TTL_DAYS)


def store(folder: Path, online: str, offline: str = "duckdb") -> FeatureStore:
    """A repository in the folder; `online` is sqlite or the address of a Redis."""
    path = str(folder / "online.db")
    kept = {"type": "sqlite", "path": path} if online == "sqlite" else {"type": "redis", "connection_string": online}
    config = {
        "project": "bench", "provider": "local", "registry": str(folder / "registry.db"), "online_store": kept,
        "offline_store": {"type": "duckdb" if offline == "duckdb" else "dask"}, "entity_key_serialization_version": 3,
    }  # fmt: skip
    (folder / "feature_store.yaml").write_text(json.dumps(config))  # JSON is YAML; `feast serve` reads it
    return FeatureStore(config=RepoConfig(**config))


def view(name: str, path: Path, fields: list[str]) -> FeatureView:
    """A view over one file."""
    columns = {"timestamp_field": "event", "created_timestamp_column": "created"}
    source = FileSource(name=f"{name}_source", path=str(path), **columns)
    schema = [Field(name=field, dtype=Float64) for field in fields]
    return FeatureView(name=name, entities=[USER], ttl=TTL, schema=schema, source=source, online=True)


def history(folder: Path, engine: str, count: str) -> None:
    """Labels joined to three views, to Arrow; fewer labels where an engine could not hold them all."""
    feast = store(folder, "sqlite", engine)
    feast.apply([USER, *(view(name, folder / f"{name}.parquet", names(name)) for name in VIEWS)])
    labels = pq.read_table(folder / "labels.parquet").slice(0, min(int(count), LABELS)).to_pandas()
    wanted = [f"{name}:{field}" for name in VIEWS for field in names(name)]
    report(lambda: feast.get_historical_features(entity_df=labels, features=wanted).to_arrow(), checksum)


def rows(folder: Path, count: int) -> Path:
    """One row of 20 features for each user, a day old."""
    import numpy as np

    now = dt.datetime.now(dt.UTC)
    path = folder / f"rows{count}.parquet"
    columns: dict[str, Any] = {name: np.random.default_rng(1).normal(size=count) for name in every_name()}
    columns |= {"user_id": np.arange(count), "event": [now - dt.timedelta(days=1)] * count}
    columns["created"] = columns["event"]
    pq.write_table(pa.table(columns), path)
    return path


def materialise(folder: Path, online: str, count: str) -> None:
    """An online store filled from a file."""
    feast = store(folder, online)
    feast.apply([USER, view("wide", rows(folder, int(count)), every_name())])
    now = dt.datetime.now(dt.UTC)

    def work() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            feast.materialize(now - dt.timedelta(days=3), now)

    report(work)


def read(folder: Path, online: str) -> None:
    """Ten entities, twenty features, as a dict; what `materialise` left is read."""
    feast = store(folder, online)
    wanted = [f"wide:{name}" for name in every_name()]
    turns(lambda: feast.get_online_features(wanted, KEYS).to_dict())


def truth(folder: Path, online: str, engine: str) -> None:
    """The cases of `CASES`: what the store gives for each, online after pushes in their order, and offline."""
    import pandas as pd

    feast, path = store(folder, online, engine), folder / "truth.parquet"
    now = pd.Timestamp.now(tz="UTC")
    frame = pd.DataFrame(CASES, columns=["user_id", "event", "created", "x"])
    for name in ("event", "created"):
        frame[name] = (now - pd.to_timedelta(frame[name], unit="h")).dt.as_unit("us")
    frame.to_parquet(path)
    feast.apply([USER, view("truth", path, ["x"])])
    for at in range(len(frame)):
        feast.write_to_online_store("truth", frame.iloc[at : at + 1])
    got = feast.get_online_features(["truth:x"], [{"user_id": key} for key in range(4)]).to_dict()
    labels = pd.DataFrame({"user_id": range(4), "event_timestamp": [now] * 4})
    past = feast.get_historical_features(entity_df=labels, features=["truth:x"]).to_arrow().to_pydict()
    offline = dict(zip(past["user_id"], past["x"], strict=True))
    cells = {"online": got["x"], "offline": [offline.get(key, "dropped") for key in range(4)]}
    report(lambda: None, lambda _: cells)


if __name__ == "__main__":
    acts = {"history": history, "materialise": materialise, "read": read, "truth": truth}
    acts[sys.argv[1]](Path(sys.argv[2]), *(word for word in sys.argv[3:] if not word.startswith("--")))
