"""What people who watch do beside the platform: read a report, and make a baseline."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from falaj.catalog.reading import printable
from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.drift.records import Finding
from falaj.jobs.records import JobView
from falaj.monitor import page, plots
from falaj.monitor.basing import ask
from falaj.monitor.records import Figures
from falaj.study.page_files import keep_file

MOST_DRAWN, MOST_SAID = 8, 40
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MEANT = ("performance", "estimate", "fairness")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, as lines, and every figure of it."""

    TEXT: ClassVar[str] = "lines"

    title: str
    figures: Figures
    lines: tuple[str, ...]
    page: str = ""
    """The file of the page, where one was asked for."""


@errand
def report(
    here: Here,
    what: Annotated[str, "an endpoint; or a dataset, or a file, to compare another with"],
    against: Annotated[str, "of a dataset or file: what is compared with it"] = "",
    since: Annotated[str, "how far to look back: 90m, 24h, 7d, 4w"] = "7d",
    html: Annotated[str, "write one page that needs nothing else to this file"] = "",
    segment: Annotated[str, "of datasets: the column whose values are looked at each by itself"] = "",
    label: Annotated[str, "of datasets: the column that is the truth"] = "",
) -> Report:
    """Tell what drifted: which columns, how much, since when, in which segment, and what it means for the metric.

    Example:
        falaj monitor report endpoint:fraud/score --since 24h --html drift.html
        falaj monitor report dataset:fraud/tx@v1 --against dataset:fraud/tx@v2
        falaj monitor report january.parquet --against february.parquet
    """
    if what.startswith("endpoint:"):
        if against or segment or label:
            hint = f"falaj monitor baseline {what} --segment …, or falaj monitor change"
            raise Invalid("an endpoint is compared with its own baseline", hint)
        figures: Figures = here.monitor.figures(Ref.parse(what), since_s=span_of(since))
        title = f"{what} since {since}"
    else:
        figures = _offline(here, what, against, segment, label)
        title = f"{against} against {what}"
    place = str(keep_file(page.render(figures, title), html)) if html else ""
    lines = (*told(figures, title), *((f"the page is in {place}",) if place else ()))
    return Report(title, figures, lines, place)


@errand
def baseline(
    here: Here,
    what: Annotated[Ref, "an endpoint, or a version of a model"],
    data: Annotated[Ref | None, "what it was trained on; what its lineage names, when left out"] = None,
    target: Annotated[str, "the column that is the truth"] = "",
    segment: Annotated[str, "a column whose values are looked at each by itself"] = "",
    wait: Annotated[bool, "wait until it is made"] = False,
) -> JobView:
    """Make what windows are compared with, from the data a model was trained on: a job that runs the model over it.

    It becomes a version of the dataset PROJECT/MODEL.baseline, and every watch of that model uses the newest one.

    Example:
        falaj monitor baseline endpoint:fraud/score --data dataset:fraud/tx@v3 --target is_fraud --segment city
    """
    model = _model(here, what)
    version = here.catalog.show(model)
    sets = {role: ref for role, ref in version.inputs.items() if ref.kind == "dataset"}
    source = data or sets.get("data") or (next(iter(sets.values())) if len(sets) == 1 else None)
    if source is None:
        raise Invalid(f"{version.ref} does not say what it was trained on", "name it: --data dataset:…", version.ref)
    words = {"target": target, "segment": segment}
    job = ask(here, version.ref, source, words, f"baseline-{model.name[:60]}-{new_id()[-8:]}")
    if not wait:
        return job
    done: tuple[JobView, ...] = here.jobs.wait((job.ref,))
    return done[0]


def told(figures: Figures, title: str) -> list[str]:
    """The report as lines for a terminal."""
    alarms = [one for one in figures.findings if one.alarm]
    meant = [one for one in figures.findings if one.what in _MEANT and not one.alarm]
    lines = [printable(title), f"{page.summary(figures)}; {page.facts(figures)}"]
    lines += [page.service(figures), ""] if figures.windows else [""]
    lines += ["alarms:", *(_said(one, figures) for one in alarms[:MOST_SAID]), ""] if alarms else []
    lines += ["what it means:", *(_said(one, figures) for one in meant[:MOST_SAID]), ""] if meant else []
    lines += ["windows, oldest first:", *plots.timeline(figures.windows[-100:]), ""] if figures.windows else []
    names = {one.column for one in alarms}
    shown = [one for one in figures.axes if one.name in names or one.role != "input"][:MOST_DRAWN]
    lines += [line for axis in shown or figures.axes[:3] for line in plots.histogram(axis)]
    left = len(figures.axes) - len(shown or figures.axes[:3])
    return [*lines, *([f"{left} more columns: --html FILE draws them all"] if left > 0 else [])]


def span_of(text: str) -> float:
    """How long a text like 7d is, in seconds."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise Invalid(f"{text[:40]!r} is no time", "for example 90m, 24h, 7d or 4w")
    return float(found[1]) * _UNITS[found[2]]


def _said(one: Finding, figures: Figures) -> str:
    since = page.began(figures.windows, one, figures.revision) if one.alarm else ""
    place = " ".join(word for word in (one.column, f"[{one.segment}]" if one.segment else "") if word)
    said = one.said or f"{one.measure} {one.value:.4g}, {one.then:.4g} then"
    return printable(f"  {one.what:<12} {place:<24} {said}{f', since {since}' if since else ''}")


def _model(here: Here, what: Ref) -> Ref:
    if what.kind == "model":
        return what
    if what.kind != "endpoint":
        raise Invalid(f"{what} is no endpoint and no model", "for example endpoint:fraud/score", what)
    view = here.serve.show(what)
    current = max((int(one) for one in view.traffic), default=0)
    found = [one.model for one in view.revisions if one.number == current] or [view.revisions[-1].model]
    model: Ref = found[0]
    return model


def _offline(here: Here, what: str, against: str, segment: str, label: str) -> Figures:
    """Two tables, without any endpoint."""
    from falaj.monitor.isolated_report import compare_isolated

    if not against:
        raise Invalid(f"{what[:80]} alone says nothing", "--against another dataset or file")
    with _table(here, what) as reference, _table(here, against) as current:
        return compare_isolated(reference, current, what, segment, label)


@contextmanager
def _table(here: Here, what: str) -> Iterator[Path]:
    """Where the table lies: a file or folder of the caller's, or a version brought here for a moment."""
    if not what.startswith("dataset:"):
        place = Path(what)
        if not place.exists():
            raise Invalid(f"there is no file {what[:200]}", "name a file, a folder, or a dataset: dataset:fraud/tx@v1")
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="falaj-report-") as folder:
        here.catalog.checkout(Ref.parse(what), f"{folder}/data")
        yield Path(folder) / "data"
