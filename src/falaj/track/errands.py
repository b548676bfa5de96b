"""What the users of experiments do beside the platform: plot curves, carry in runs recorded offline."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from blake3 import blake3

from falaj.core.errand import Here, errand
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.draw import draw, spark
from falaj.track.names import MAIN, full_name, ref_of
from falaj.track.points import Columns, Spot, by_metric
from falaj.track.records import DEFAULT, OVER, Artifact, Experiment, Metric, Run
from falaj.track.sources import Recorded, read_source

MOST_RUNS = 10
T = TypeVar("T")
_AT_ONCE = 5_000
_BINS = 400


@dataclass(frozen=True, slots=True)
class Spark:
    """A metric of a run in one line."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("metric", "curve", "newest", "lowest", "highest", "num_points")

    metric: str
    curve: str
    newest: str
    lowest: str
    highest: str
    num_points: int


@dataclass(frozen=True, slots=True)
class Synced:
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


@errand
def plot(
    here: Here,
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
    if not 0 < len(runs) <= MOST_RUNS:
        raise Invalid(f"{len(runs)} runs in one plot", f"1 to {MOST_RUNS}")
    if not 2 <= height <= 200 or not 0 <= width <= 1000:
        raise Invalid(f"a plot of {width} by {height}", "at most 1000 by 200")
    curves = []
    for ref in runs:
        run: Run = here.track.show(ref)
        points = here.track.history(ref, metric, bins=_BINS).points
        curves.append((f"{run.title} ({ref})", [(float(one.step), one.number) for one in points]))
    if not any(points for _, points in curves):
        raise NotFound(f"nobody logged {metric[:200]!r} there", f"falaj track sparks {runs[0]} shows what was")
    room = width or max(20, shutil.get_terminal_size((100, 24)).columns - 14)
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"{metric}\n{draw(curves, room, height, colour=coloured, log=log)}"


@errand
def sparks(
    here: Here, run: Annotated[Ref, "which run"], most: Annotated[int, "how many metrics at most"] = 50
) -> tuple[Spark, ...]:
    """Show every metric of a run in one line each: its curve, its newest, lowest and highest value.

    Example:
        falaj track sparks run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
    """
    shown: Run = here.track.show(run)
    found = []
    for key in sorted(shown.metrics)[: max(0, most)]:
        curve = here.track.history(run, key, bins=_BINS)
        values = [point.number for point in curve.points]
        known = [value for value in values if value == value]  # NaN alone differs from itself
        ends = (f"{min(known):.6g}", f"{max(known):.6g}") if known else ("nan", "nan")
        found.append(Spark(key, spark(values), f"{shown.metrics[key].number:.6g}", *ends, curve.total))
    return tuple(found)


@errand
def sync(
    here: Here,
    source: Annotated[str, "a folder of the offline recorder, an mlruns folder, or an mlflow.db"],
    project: Annotated[str, "the project of experiments whose names say none"] = MAIN,
) -> tuple[Synced, ...]:
    """Carry in runs that were recorded elsewhere. Again, it carries in what is new since.

    Runs keep their ids and experiments their titles; they lie where MLflow's clients would put them.

    Example:
        falaj track sync ./mlruns --project fraud
    """
    found = []
    places: dict[str, Ref] = {}
    with here.progress.task("carrying in runs", None, "runs") as task:
        for recorded in read_source(source):
            if recorded.experiment not in places:
                places[recorded.experiment] = _experiment(here, recorded.experiment, project)
            found.append(_carry(here, recorded, places[recorded.experiment]))
            task.advance(1)
    return tuple(found)


def _experiment(here: Here, named: str, project: str) -> Ref:
    """The experiment of that title or reference, made when there is none."""
    if named.startswith("experiment:"):
        name, title = Ref.parse(named), ""
    else:
        name, title = ref_of("experiment", full_name(named, project)), named
        name = DEFAULT if named == "Default" else name
    known: tuple[Experiment, ...] = here.track.experiments(title=title or name.name, state="all").experiments
    if title and known:
        return known[0].ref
    try:
        made: Experiment = here.track.create(name, title=title)
    except Conflict:
        return name
    return made.ref


def _carry(here: Here, recorded: Recorded, experiment: Ref) -> Synced:
    """One run: what is missing here, and no more."""
    known = here.track.list(experiments=(experiment,), where=f"run_id = '{recorded.id}'", state="all", limit=1).runs
    if known and known[0].state != "active":
        return Synced(known[0].ref, known[0].title, "deleted", 0, 0, 0, 0)
    run: Run = here.track.start(experiment, title=recorded.title, started=recorded.started, run=recorded.id)
    params = {key: value for key, value in recorded.params.items() if run.params.get(key) != value}
    tags = {key: value for key, value in recorded.tags.items() if run.tags.get(key) != value}
    for texts, name in ((params, "params"), (tags, "tags")):
        for some in _chunks(list(texts.items()), 500):
            here.track.log(run.ref, **{name: dict(some)})
    points = sum(_send(here, run, key, Columns.of(spots)) for key, spots in by_metric(recorded.points).items())
    files = _attach(here, run.ref, recorded)
    over = recorded.status in OVER and (run.status, run.ended) != (recorded.status, recorded.ended)
    if over:
        here.track.end(run.ref, status=recorded.status, ended=recorded.ended)
    grown = bool(params or tags or points or files or over)
    state = "new" if not known else "grown" if grown else "same"
    return Synced(run.ref, run.title, state, points, len(params), len(tags), files)


def _send(here: Here, run: Run, key: str, columns: Columns) -> int:
    """The points that are not here: those behind what is, where that is their beginning; else all, once more."""
    total = here.track.history(run.ref, key, bins=1).total if key in run.metrics else 0
    head = run.metrics.get(key)
    if total and head is not None and total <= len(columns) and _is(columns.spot(total - 1), head):
        columns = columns[total:]
    for spots in _chunks(list(columns), _AT_ONCE):
        here.track.log(run.ref, metrics=tuple(Metric(key, value, at, step) for step, at, value in spots))
    return len(columns)


def _is(spot: Spot, head: Metric) -> bool:
    step, at, value = spot
    return (step, at) == (head.step, head.at) and (value == head.number or (value != value and head.odd == "nan"))


def _attach(here: Here, run: Ref, recorded: Recorded) -> int:
    if not recorded.files:
        return 0
    there: dict[str, Artifact] = {one.path: one for one in here.track.artifacts(run, deep=True)}
    sent = 0
    for path, file in recorded.files.items():
        known = there.get(path)
        if known is None or known.size_bytes != file.stat().st_size or known.digest != _digest(file):
            here.track.attach(run, path, str(file))
            sent += 1
    return sent


def _digest(file: Path) -> str:
    return f"b3:{blake3(max_threads=1).update_mmap(file).hexdigest()}"


def _chunks(items: list[T], size: int) -> Iterable[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
