"""What people who watch do beside the platform: read a report, and make a baseline."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from falaj.catalog.version_reader import to_printable
from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.drift.records import DriftFinding
from falaj.jobs.records import JobView
from falaj.monitor import plots, report_page
from falaj.monitor.baseline_search import submit_baseline_job
from falaj.monitor.records import ReportFigures
from falaj.study.output_files import write_text_file

MAX_DRAWN_COLUMNS, MAX_LISTED_FINDINGS = 8, 40
_SPAN_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MEANING_KINDS = ("performance", "estimate", "fairness")


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What was found, as lines, and every figure of it."""

    TEXT: ClassVar[str] = "lines"

    title: str
    figures: ReportFigures
    lines: tuple[str, ...]
    page: str = ""
    """The file of the page, where one was asked for."""


@client_command
def report(
    client: Client,
    what: Annotated[str, "an endpoint; or a dataset, or a file, to compare another with"],
    against: Annotated[str, "of a dataset or file: what is compared with it"] = "",
    since: Annotated[str, "how far to look back: 90m, 24h, 7d, 4w"] = "7d",
    html: Annotated[str, "write one page that needs nothing else to this file"] = "",
    segment: Annotated[str, "of datasets: the column whose values are looked at each by itself"] = "",
    label: Annotated[str, "of datasets: the column that is the truth"] = "",
) -> DriftReport:
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
        figures: ReportFigures = client.monitor.figures(Ref.parse(what), since_s=parse_span(since))
        title = f"{what} since {since}"
    else:
        figures = _compare_tables(client, what, against, segment, label)
        title = f"{against} against {what}"
    page_path = str(write_text_file(report_page.render_page(figures, title), html)) if html else ""
    lines = (*format_report(figures, title), *((f"the page is in {page_path}",) if page_path else ()))
    return DriftReport(title, figures, lines, page_path)


@client_command
def baseline(
    client: Client,
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
    model = _resolve_model(client, what)
    version = client.catalog.show(model)
    dataset_inputs = {role: ref for role, ref in version.inputs.items() if ref.kind == "dataset"}
    source = (
        data
        or dataset_inputs.get("data")
        or (next(iter(dataset_inputs.values())) if len(dataset_inputs) == 1 else None)
    )
    if source is None:
        raise Invalid(f"{version.ref} does not say what it was trained on", "name it: --data dataset:…", version.ref)
    parameters = {"target": target, "segment": segment}
    job = submit_baseline_job(
        client, version.ref, source, parameters, f"baseline-{model.name[:60]}-{generate_id()[-8:]}"
    )
    if not wait:
        return job
    finished_jobs: tuple[JobView, ...] = client.jobs.wait((job.ref,))
    return finished_jobs[0]


def format_report(figures: ReportFigures, title: str) -> list[str]:
    """The report as lines for a terminal."""
    alarms = [item for item in figures.findings if item.alarm]
    meaning_findings = [item for item in figures.findings if item.what in _MEANING_KINDS and not item.alarm]
    lines = [to_printable(title), f"{report_page.summarize_figures(figures)}; {report_page.describe_sources(figures)}"]
    lines += [report_page.describe_service(figures), ""] if figures.windows else [""]
    lines += (
        ["alarms:", *(_format_finding(item, figures) for item in alarms[:MAX_LISTED_FINDINGS]), ""] if alarms else []
    )
    lines += (
        ["what it means:", *(_format_finding(item, figures) for item in meaning_findings[:MAX_LISTED_FINDINGS]), ""]
        if meaning_findings
        else []
    )
    lines += ["windows, oldest first:", *plots.draw_timeline(figures.windows[-100:]), ""] if figures.windows else []
    names = {item.column for item in alarms}
    drawn_axes = [item for item in figures.axes if item.name in names or item.role != "input"][:MAX_DRAWN_COLUMNS]
    lines += [line for axis in drawn_axes or figures.axes[:3] for line in plots.draw_histogram(axis)]
    undrawn_count = len(figures.axes) - len(drawn_axes or figures.axes[:3])
    return [*lines, *([f"{undrawn_count} more columns: --html FILE draws them all"] if undrawn_count > 0 else [])]


def parse_span(text: str) -> float:
    """How long a text like 7d is, in seconds."""
    match = _SPAN_PATTERN.fullmatch(text.strip())
    if match is None:
        raise Invalid(f"{text[:40]!r} is no time", "for example 90m, 24h, 7d or 4w")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _format_finding(finding: DriftFinding, figures: ReportFigures) -> str:
    since = report_page.format_alarm_start(figures.windows, finding, figures.revision) if finding.alarm else ""
    location = " ".join(
        location_word
        for location_word in (finding.column, f"[{finding.segment}]" if finding.segment else "")
        if location_word
    )
    message = finding.said or f"{finding.measure} {finding.value:.4g}, {finding.then:.4g} then"
    return to_printable(f"  {finding.what:<12} {location:<24} {message}{f', since {since}' if since else ''}")


def _resolve_model(client: Client, ref: Ref) -> Ref:
    if ref.kind == "model":
        return ref
    if ref.kind != "endpoint":
        raise Invalid(f"{ref} is no endpoint and no model", "for example endpoint:fraud/score", ref)
    view = client.serve.show(ref)
    current = max((int(item) for item in view.traffic), default=0)
    model_refs = [item.model for item in view.revisions if item.number == current] or [view.revisions[-1].model]
    model: Ref = model_refs[0]
    return model


def _compare_tables(client: Client, reference_name: str, current_name: str, segment: str, label: str) -> ReportFigures:
    """Two tables, without any endpoint."""
    from falaj.monitor.isolated_report import compare_isolated

    if not current_name:
        raise Invalid(f"{reference_name[:80]} alone says nothing", "--against another dataset or file")
    with _open_table(client, reference_name) as reference, _open_table(client, current_name) as current:
        return compare_isolated(reference, current, reference_name, segment, label)


@contextmanager
def _open_table(client: Client, table_name: str) -> Iterator[Path]:
    """Where the table lies: a file or folder of the caller's, or a version brought here for a moment."""
    if not table_name.startswith("dataset:"):
        table_path = Path(table_name)
        if not table_path.exists():
            raise Invalid(
                f"there is no file {table_name[:200]}", "name a file, a folder, or a dataset: dataset:fraud/tx@v1"
            )
        yield table_path
        return
    with tempfile.TemporaryDirectory(prefix="falaj-report-") as folder:
        client.catalog.checkout(Ref.parse(table_name), f"{folder}/data")
        yield Path(folder) / "data"
