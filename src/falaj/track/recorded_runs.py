"""Runs recorded elsewhere: our own offline folders, MLflow's file store and SQLite database. Read, never written."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from falaj.core.errors import Invalid
from falaj.track.metric_points import MetricPoint
from falaj.track.offline import ARTIFACTS_FOLDER, RUN_FILE, is_run_id, read_facts

_MLFLOW_STATUSES = {1: "running", 2: "scheduled", 3: "finished", 4: "failed", 5: "killed"}
_LARGEST_FLOAT = 1.7976931348623157e308
_MAX_YAML_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class RecordedRun:
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
    points: tuple[MetricPoint, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


def read_recorded_runs(source: str) -> Iterator[RecordedRun]:
    """Every run of a source that is not deleted there, or Invalid when it is no source that we know."""
    path = Path(source).expanduser()
    if path.is_file():
        return _read_database(path)
    if (path / RUN_FILE).is_file():
        return iter([run for run in [_read_recorder_folder(path)] if run is not None])
    nested = sorted(path.glob(f"*/{RUN_FILE}"))
    if nested:
        return (run for file in nested if (run := _read_recorder_folder(file.parent)) is not None)
    if next(path.glob("*/meta.yaml"), None) is not None:
        return _read_file_store(path)
    if (path / "mlflow.db").is_file():
        return _read_database(path / "mlflow.db")
    raise Invalid(f"{source[:200]} holds no runs", "a folder of falaj.track.offline, an mlruns folder, or an mlflow.db")


def _read_recorder_folder(folder: Path) -> RecordedRun | None:
    """A run of our own recorder."""
    start_fact: dict[str, Any] = {}
    end_fact: dict[str, Any] = {}
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    points: list[MetricPoint] = []
    for fact in read_facts(folder / RUN_FILE):
        fact_kind = fact.get("what")
        if fact_kind == "start" and not start_fact:
            start_fact = fact
        elif fact_kind == "end":
            end_fact = fact
        elif fact_kind == "log":
            end_fact = {}  # it went on
            params.update(fact.get("params", {}))
            tags.update(fact.get("tags", {}))
            points += [
                (key, fact.get("step", 0), fact["at"], float(value)) for key, value in fact.get("metrics", {}).items()
            ]
    if not is_run_id(start_fact.get("run")):
        return None
    return RecordedRun(
        start_fact["run"],
        str(start_fact.get("experiment", "")),
        str(start_fact.get("title", "")),
        end_fact.get("status", "running"),
        start_fact["at"],
        end_fact.get("at", 0.0),
        params,
        tags,
        tuple(points),
        _list_files(folder / ARTIFACTS_FOLDER),
    )


def _read_file_store(root: Path) -> Iterator[RecordedRun]:
    """MLflow's folders: <experiment>/<run>/{meta.yaml, metrics, params, tags, artifacts}."""
    for meta in sorted(root.glob("*/meta.yaml")):
        experiment = _read_yaml(meta)
        if experiment.get("lifecycle_stage", "active") != "active" or not experiment.get("name"):
            continue
        for run in sorted(meta.parent.glob("*/meta.yaml")):
            run_meta = _read_yaml(run)
            if run_meta.get("lifecycle_stage", "active") == "active" and is_run_id(run_meta.get("run_id")):
                yield _read_stored_run(run.parent, run_meta, str(experiment["name"]))


def _read_stored_run(folder: Path, meta: Mapping[str, Any], experiment: str) -> RecordedRun:
    points: list[MetricPoint] = []
    for key, file in _list_files(folder / "metrics").items():
        for line in file.read_text(encoding="utf-8").splitlines():
            logged_at, value, *step = line.split(" ")
            points.append((key, int(step[0]) if step else 0, int(logged_at) / 1000, float(value)))
    status = meta.get("status", 1)
    return RecordedRun(
        meta["run_id"],
        experiment,
        str(meta.get("run_name") or meta.get("name") or ""),
        _MLFLOW_STATUSES.get(status, "finished") if isinstance(status, int) else str(status).lower(),
        (meta.get("start_time") or 0) / 1000,
        (meta.get("end_time") or 0) / 1000,
        _read_texts(folder / "params"),
        _read_texts(folder / "tags"),
        tuple(points),
        _list_files(folder / "artifacts"),
    )


def _read_database(file: Path) -> Iterator[RecordedRun]:
    """MLflow's tables, opened for reading only."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as db:
            rows = db.execute(
                """SELECT r.run_uuid, e.name, r.name, r.status, r.start_time, r.end_time, r.artifact_uri
                FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id
                WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active' ORDER BY r.start_time, r.run_uuid"""
            ).fetchall()
            for id_, experiment, title, status, started, ended, artifact_uri in rows:
                if is_run_id(id_):
                    params = dict(db.execute("SELECT key, value FROM params WHERE run_uuid = ?", (id_,)))
                    tags = dict(db.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (id_,)))
                    yield RecordedRun(
                        id_,
                        experiment,
                        title or "",
                        (status or "running").lower(),
                        (started or 0) / 1000,
                        (ended or 0) / 1000,
                        params,
                        tags,
                        tuple(_read_metrics(db, id_)),
                        _list_files(_to_local_path(artifact_uri)),
                    )
    except sqlite3.Error as error:
        raise Invalid(f"{file} cannot be read as a database of MLflow ({error})", "give its mlflow.db") from error


def _read_metrics(db: sqlite3.Connection, run: str) -> Iterator[MetricPoint]:
    rows = db.execute("SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ?", (run,))
    for key, step, logged_at, value, is_nan in rows:
        number = float("nan") if is_nan else value
        # Infinity is kept there as the largest number there is.
        yield (
            key,
            step,
            logged_at / 1000,
            float("inf") * (1 if number > 0 else -1) if abs(number) >= _LARGEST_FLOAT else number,
        )


def _to_local_path(uri: str | None) -> Path | None:
    parts = urlsplit(uri or "")
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") and parts.path else None


def _list_files(root: Path | None) -> dict[str, Path]:
    """Every plain file below a folder by its path in it; links are not followed."""
    if root is None or not root.is_dir():
        return {}
    file_paths = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    resolved_root = root.resolve()
    return {
        path.relative_to(root).as_posix(): path for path in file_paths if path.resolve().is_relative_to(resolved_root)
    }


def _read_texts(folder: Path) -> dict[str, str]:
    return {key: file.read_text(encoding="utf-8") for key, file in _list_files(folder).items()}


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise Invalid("reading MLflow's folders needs the package PyYAML", "pip install pyyaml") from error
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8")[:_MAX_YAML_CHARS])
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not YAML", "it may be damaged") from error
    return document if isinstance(document, dict) else {}
