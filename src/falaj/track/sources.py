"""Runs recorded elsewhere: our own offline folders, MLflow's file store and SQLite database. Read, never written."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from falaj.core.errors import Invalid
from falaj.track.offline import FILES, NAME, is_id, read_lines
from falaj.track.points import Point

_STATUS = {1: "running", 2: "scheduled", 3: "finished", 4: "failed", 5: "killed"}
_LARGEST = 1.7976931348623157e308
_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run as its source has it."""

    id: str
    experiment: str
    """Its experiment: a title, or a reference where our own recorder wrote one."""
    title: str
    status: str
    started: float
    ended: float = 0.0
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


def read_source(source: str) -> Iterator[Recorded]:
    """Every run of a source that is not deleted there, or Invalid when it is no source that we know."""
    path = Path(source).expanduser()
    if path.is_file():
        return _database(path)
    if (path / NAME).is_file():
        return iter([run for run in [_recorded(path)] if run is not None])
    nested = sorted(path.glob(f"*/{NAME}"))
    if nested:
        return (run for file in nested if (run := _recorded(file.parent)) is not None)
    if next(path.glob("*/meta.yaml"), None) is not None:
        return _file_store(path)
    if (path / "mlflow.db").is_file():
        return _database(path / "mlflow.db")
    raise Invalid(f"{source[:200]} holds no runs", "a folder of falaj.track.offline, an mlruns folder, or an mlflow.db")


def _recorded(folder: Path) -> Recorded | None:
    """A run of our own recorder."""
    start: dict[str, Any] = {}
    end: dict[str, Any] = {}
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    points: list[Point] = []
    for fact in read_lines(folder / NAME):
        what = fact.get("what")
        if what == "start" and not start:
            start = fact
        elif what == "end":
            end = fact
        elif what == "log":
            end = {}  # it went on
            params.update(fact.get("params", {}))
            tags.update(fact.get("tags", {}))
            points += [
                (key, fact.get("step", 0), fact["at"], float(value)) for key, value in fact.get("metrics", {}).items()
            ]
    if not is_id(start.get("run")):
        return None
    return Recorded(
        start["run"], str(start.get("experiment", "")), str(start.get("title", "")), end.get("status", "running"),
        start["at"], end.get("at", 0.0), params, tags, tuple(points), _files(folder / FILES),
    )  # fmt: skip


def _file_store(root: Path) -> Iterator[Recorded]:
    """MLflow's folders: <experiment>/<run>/{meta.yaml, metrics, params, tags, artifacts}."""
    for meta in sorted(root.glob("*/meta.yaml")):
        experiment = _yaml(meta)
        if experiment.get("lifecycle_stage", "active") != "active" or not experiment.get("name"):
            continue
        for run in sorted(meta.parent.glob("*/meta.yaml")):
            found = _yaml(run)
            if found.get("lifecycle_stage", "active") == "active" and is_id(found.get("run_id")):
                yield _stored(run.parent, found, str(experiment["name"]))


def _stored(folder: Path, meta: Mapping[str, Any], experiment: str) -> Recorded:
    points: list[Point] = []
    for key, file in _files(folder / "metrics").items():
        for line in file.read_text(encoding="utf-8").splitlines():
            at, value, *step = line.split(" ")
            points.append((key, int(step[0]) if step else 0, int(at) / 1000, float(value)))
    status = meta.get("status", 1)
    return Recorded(
        meta["run_id"], experiment, str(meta.get("run_name") or meta.get("name") or ""),
        _STATUS.get(status, "finished") if isinstance(status, int) else str(status).lower(),
        (meta.get("start_time") or 0) / 1000, (meta.get("end_time") or 0) / 1000,
        _texts(folder / "params"), _texts(folder / "tags"), tuple(points), _files(folder / "artifacts"),
    )  # fmt: skip


def _database(file: Path) -> Iterator[Recorded]:
    """MLflow's tables, opened for reading only."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as db:
            rows = db.execute(
                """SELECT r.run_uuid, e.name, r.name, r.status, r.start_time, r.end_time, r.artifact_uri
                FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id
                WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active' ORDER BY r.start_time, r.run_uuid"""
            ).fetchall()
            for id_, experiment, title, status, started, ended, place in rows:
                if is_id(id_):
                    params = dict(db.execute("SELECT key, value FROM params WHERE run_uuid = ?", (id_,)))
                    tags = dict(db.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (id_,)))
                    yield Recorded(
                        id_, experiment, title or "", (status or "running").lower(), (started or 0) / 1000,
                        (ended or 0) / 1000, params, tags, tuple(_measured(db, id_)), _files(_local(place)),
                    )  # fmt: skip
    except sqlite3.Error as error:
        raise Invalid(f"{file} cannot be read as a database of MLflow ({error})", "give its mlflow.db") from error


def _measured(db: sqlite3.Connection, run: str) -> Iterator[Point]:
    rows = db.execute("SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ?", (run,))
    for key, step, at, value, odd in rows:
        number = float("nan") if odd else value
        # Infinity is kept there as the largest number there is.
        yield key, step, at / 1000, float("inf") * (1 if number > 0 else -1) if abs(number) >= _LARGEST else number


def _local(uri: str | None) -> Path | None:
    parts = urlsplit(uri or "")
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") and parts.path else None


def _files(root: Path | None) -> dict[str, Path]:
    """Every plain file below a folder by its path in it; links are not followed."""
    if root is None or not root.is_dir():
        return {}
    found = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    inside = root.resolve()
    return {path.relative_to(root).as_posix(): path for path in found if path.resolve().is_relative_to(inside)}


def _texts(folder: Path) -> dict[str, str]:
    return {key: file.read_text(encoding="utf-8") for key, file in _files(folder).items()}


def _yaml(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise Invalid("reading MLflow's folders needs the package PyYAML", "pip install pyyaml") from error
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8")[:_LIMIT])
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not YAML", "it may be damaged") from error
    return read if isinstance(read, dict) else {}
