"""What the users of experiments do beside the platform: plot curves, carry in runs recorded offline."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from blake3 import blake3

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.metric_points import CurveSpot, SpotColumns, group_by_metric
from falaj.track.name_mapping import MAIN_PROJECT, to_full_name, to_reference
from falaj.track.recorded_runs import RecordedRun, read_recorded_runs
from falaj.track.records import DEFAULT_EXPERIMENT, FINISHED_STATUSES, Artifact, Experiment, Metric, Run
from falaj.track.text_charts import format_sparkline, plot_curves

MAX_PLOTTED_RUNS = 10
ItemT = TypeVar("ItemT")
_POINTS_PER_CALL = 5_000
_PLOT_BINS = 400


@dataclass(frozen=True, slots=True)
class MetricSparkline:
    """A metric of a run in one line."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("metric", "curve", "newest", "lowest", "highest", "num_points")

    metric: str
    curve: str
    newest: str
    lowest: str
    highest: str
    num_points: int


@dataclass(frozen=True, slots=True)
class RunSyncResult:
    """What of a recorded run was carried in."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("run", "title", "state", "points", "params", "tags", "files")

    run: Ref
    title: str
    state: str
    """new, grown, same, or deleted: what was deleted here is not brought back."""
    points: int
    params: int
    tags: int
    files: int


@client_command
def plot(
    here: Client,
    metric: Annotated[str, "which metric"],
    runs: Annotated[tuple[Ref, ...], "of which runs, drawn over one another"],
    width: Annotated[int, "how many characters wide; as wide as the terminal when 0"] = 0,
    height: Annotated[int, "how many lines high"] = 16,
    log: Annotated[bool, "draw the logarithm of the values"] = False,
) -> str:
    """Draw the curve of a metric, of one run or of several over one another.

    Example:
        falaj track plot loss run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
    """
    if not 0 < len(runs) <= MAX_PLOTTED_RUNS:
        raise Invalid(f"{len(runs)} runs in one plot", f"1 to {MAX_PLOTTED_RUNS}")
    if not 2 <= height <= 200 or not 0 <= width <= 1000:
        raise Invalid(f"a plot of {width} by {height}", "at most 1000 by 200")
    curves = []
    for ref in runs:
        run: Run = here.track.show(ref)
        points = here.track.history(ref, metric, bins=_PLOT_BINS).points
        curves.append((f"{run.title} ({ref})", [(float(point.step), point.number) for point in points]))
    if not any(points for _, points in curves):
        raise NotFound(f"nobody logged {metric[:200]!r} there", f"falaj track sparks {runs[0]} shows what was")
    plot_width = width or max(20, shutil.get_terminal_size((100, 24)).columns - 14)
    uses_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"{metric}\n{plot_curves(curves, plot_width, height, uses_colour=uses_colour, is_logarithmic=log)}"


@client_command
def sparks(
    here: Client, run: Annotated[Ref, "which run"], most: Annotated[int, "how many metrics at most"] = 50
) -> tuple[MetricSparkline, ...]:
    """Show every metric of a run in one line each: its curve, its newest, lowest and highest value.

    Example:
        falaj track sparks run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
    """
    shown: Run = here.track.show(run)
    sparklines = []
    for key in sorted(shown.metrics)[: max(0, most)]:
        curve = here.track.history(run, key, bins=_PLOT_BINS)
        values = [point.number for point in curve.points]
        finite_values = [value for value in values if value == value]  # NaN alone differs from itself
        lowest_and_highest = (
            (f"{min(finite_values):.6g}", f"{max(finite_values):.6g}") if finite_values else ("nan", "nan")
        )
        sparklines.append(
            MetricSparkline(
                key, format_sparkline(values), f"{shown.metrics[key].number:.6g}", *lowest_and_highest, curve.total
            )
        )
    return tuple(sparklines)


@client_command
def sync(
    here: Client,
    source: Annotated[str, "a folder of the offline recorder, an mlruns folder, or an mlflow.db"],
    project: Annotated[str, "the project of experiments whose names say none"] = MAIN_PROJECT,
) -> tuple[RunSyncResult, ...]:
    """Carry in runs that were recorded elsewhere. Again, it carries in what is new since.

    Runs keep their ids and experiments their titles; they lie where MLflow's clients would put them.

    Example:
        falaj track sync ./mlruns --project fraud
    """
    results = []
    experiment_refs: dict[str, Ref] = {}
    with here.progress.task("carrying in runs", None, "runs") as task:
        for recorded in read_recorded_runs(source):
            if recorded.experiment not in experiment_refs:
                experiment_refs[recorded.experiment] = _find_or_create_experiment(here, recorded.experiment, project)
            results.append(_sync_run(here, recorded, experiment_refs[recorded.experiment]))
            task.advance(1)
    return tuple(results)


def _find_or_create_experiment(client: Client, experiment_name: str, project: str) -> Ref:
    """The experiment of that title or reference, made when there is none."""
    if experiment_name.startswith("experiment:"):
        name, title = Ref.parse(experiment_name), ""
    else:
        name, title = to_reference("experiment", to_full_name(experiment_name, project)), experiment_name
        name = DEFAULT_EXPERIMENT if experiment_name == "Default" else name
    existing: tuple[Experiment, ...] = client.track.experiments(title=title or name.name, state="all").experiments
    if title and existing:
        return existing[0].ref
    try:
        experiment: Experiment = client.track.create(name, title=title)
    except Conflict:
        return name
    return experiment.ref


def _sync_run(client: Client, recorded: RecordedRun, experiment: Ref) -> RunSyncResult:
    """One run: what is missing here, and no more."""
    existing = client.track.list(
        experiments=(experiment,), where=f"run_id = '{recorded.id}'", state="all", limit=1
    ).runs
    if existing and existing[0].state != "active":
        return RunSyncResult(existing[0].ref, existing[0].title, "deleted", 0, 0, 0, 0)
    run: Run = client.track.start(experiment, title=recorded.title, started=recorded.started, run=recorded.id)
    params = {key: value for key, value in recorded.params.items() if run.params.get(key) != value}
    tags = {key: value for key, value in recorded.tags.items() if run.tags.get(key) != value}
    for texts, name in ((params, "params"), (tags, "tags")):
        for text_chunk in _split_chunks(list(texts.items()), 500):
            client.track.log(run.ref, **{name: dict(text_chunk)})
    points = sum(
        _send_missing_points(client, run, key, SpotColumns.of(spots))
        for key, spots in group_by_metric(recorded.points).items()
    )
    files = _attach_missing_files(client, run.ref, recorded)
    has_ended = recorded.status in FINISHED_STATUSES and (run.status, run.ended) != (recorded.status, recorded.ended)
    if has_ended:
        client.track.end(run.ref, status=recorded.status, ended=recorded.ended)
    has_grown = bool(params or tags or points or files or has_ended)
    state = "new" if not existing else "grown" if has_grown else "same"
    return RunSyncResult(run.ref, run.title, state, points, len(params), len(tags), files)


def _send_missing_points(client: Client, run: Run, key: str, columns: SpotColumns) -> int:
    """The points that are not here: those behind what is, where that is their beginning; else all, once more."""
    total = client.track.history(run.ref, key, bins=1).total if key in run.metrics else 0
    head = run.metrics.get(key)
    if total and head is not None and total <= len(columns) and _is_same_point(columns.spot(total - 1), head):
        columns = columns[total:]
    for spots in _split_chunks(list(columns), _POINTS_PER_CALL):
        client.track.log(
            run.ref, metrics=tuple(Metric(key, value, logged_at, step) for step, logged_at, value in spots)
        )
    return len(columns)


def _is_same_point(spot: CurveSpot, head: Metric) -> bool:
    step, logged_at, value = spot
    return (step, logged_at) == (head.step, head.at) and (
        value == head.number or (value != value and head.odd == "nan")
    )


def _attach_missing_files(client: Client, run: Ref, recorded: RecordedRun) -> int:
    if not recorded.files:
        return 0
    artifacts_by_path: dict[str, Artifact] = {
        artifact.path: artifact for artifact in client.track.artifacts(run, deep=True)
    }
    sent_count = 0
    for path, file in recorded.files.items():
        existing = artifacts_by_path.get(path)
        if existing is None or existing.size_bytes != file.stat().st_size or existing.digest != _file_digest(file):
            client.track.attach(run, path, str(file))
            sent_count += 1
    return sent_count


def _file_digest(file: Path) -> str:
    return f"b3:{blake3(max_threads=1).update_mmap(file).hexdigest()}"


def _split_chunks(items: list[ItemT], size: int) -> Iterable[list[ItemT]]:
    return (items[start : start + size] for start in range(0, len(items), size))
