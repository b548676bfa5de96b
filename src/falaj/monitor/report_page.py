"""The report as one page: everything in the file, nothing from elsewhere, no script; light or dark as the reader's
screen is. Names and values come from whoever sent them: all of them are escaped."""

from collections.abc import Sequence
from datetime import UTC, datetime

from falaj.drift.records import DriftFinding
from falaj.monitor.column_drawing import find_alarm_start
from falaj.monitor.plots import escape_text, render_svg_histogram, render_svg_timeline
from falaj.monitor.records import MonitorWindow, ReportFigures

_PAGE_STYLE = """:root{color-scheme:light dark;--ink:#1d2a33;--paper:#fff;--line:#d9dee2;--then:#b9c4cc;--now:#2f6f8f;
--bad:#b3362b;--soft:#66727a}@media(prefers-color-scheme:dark){:root{--ink:#e4e9ec;--paper:#12181c;--line:#334048;
--then:#4d5b64;
--now:#6db3d3;--bad:#f07b6e;--soft:#98a5ad}}body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;
padding:0 1em;color:var(--ink);background:var(--paper)}table{border-collapse:collapse;width:100%}th,td{text-align:left;
padding:.3em .6em;border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right;
font-variant-numeric:tabular-nums}tr.alarm td:first-child{border-left:4px solid var(--bad)}small{color:var(--soft)}
svg{width:100%;height:auto}svg text{font-size:10px;fill:var(--soft)}.then{fill:var(--then)}.now{fill:var(--now)}
.alarm{fill:var(--bad)}.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(26em,1fr));gap:1.2em}
h3{margin:.4em 0;font-size:1em;overflow-wrap:anywhere}@media print{body{margin:0}tr,.cell{break-inside:avoid}}"""
_CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MEANING_KINDS = ("performance", "estimate", "fairness", "errors", "latency")


def render_page(figures: ReportFigures, title: str) -> str:
    """The whole page."""
    alarms = [item for item in figures.findings if item.alarm]
    meaning_findings = [item for item in figures.findings if item.what in _MEANING_KINDS]
    other_findings = [item for item in figures.findings if item.what not in _MEANING_KINDS and not item.alarm]
    sections = [
        f"<h1>{escape_text(title)}</h1><p>{escape_text(summarize_figures(figures))}</p><p><small>{escape_text(describe_sources(figures))}</small></p>",
        f"<p>{escape_text(describe_service(figures))}</p>",
        "<h2>Alarms</h2>" + _render_table(alarms, figures) if alarms else "<h2>Alarms</h2><p>None.</p>",
        "<h2>What it means</h2>" + _render_table(meaning_findings, figures) if meaning_findings else "",
        "<h2>Windows</h2>" + render_svg_timeline(figures.windows) if figures.windows else "",
        '<h2>Columns</h2><p><small>pale: then; strong: now</small></p><div class="grid">'
        + "".join(
            f'<div class="cell"><h3>{escape_text(item.name)}</h3>{render_svg_histogram(item)}</div>'
            for item in figures.axes
        )
        + "</div>",
        "<h2>Everything else that was compared</h2>" + _render_table(other_findings, figures) if other_findings else "",
    ]
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_CONTENT_POLICY}">'
    view = '<meta name="viewport" content="width=device-width">'
    head = f'<meta charset="utf-8">{policy}{view}<title>{escape_text(title)}</title><style>{_PAGE_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(sections)}</body></html>\n'


def summarize_figures(figures: ReportFigures) -> str:
    """How it stands, in a sentence."""
    alarms = [finding for finding in figures.findings if finding.alarm]
    columns = sorted({finding.column for finding in alarms if finding.column})
    columns_text = f" in {', '.join(columns[:5])}{' and others' if len(columns) > 5 else ''}" if columns else ""
    rows = f"{figures.rows:,} rows"
    return (
        f"{len(alarms)} alarm{'s' * (len(alarms) > 1)}{columns_text}, on {rows}" if alarms else f"no alarm, on {rows}"
    )


def describe_sources(figures: ReportFigures) -> str:
    """Where the figures are from."""
    texts = [f"from {format_moment(figures.since)} to {format_moment(figures.until)}"] if figures.since else []
    texts += [f"revision {figures.revision}"] if figures.revision else []
    texts += [f"against {figures.baseline}"] if figures.baseline else []
    texts += [f"{figures.seen:,} rows came"] if figures.seen > figures.rows else []
    return " · ".join([*texts, *([figures.note] if figures.note else [])])


def describe_service(figures: ReportFigures) -> str:
    """What answering took, by the windows: requests, failures, time, and slots."""
    revision_windows = [window for window in figures.windows if window.revision == figures.revision]
    requests, cost = (
        sum(window.requests for window in revision_windows),
        sum(window.cost for window in revision_windows),
    )
    if not requests:
        return ""
    failed_share, slowest_p95_ms = (
        sum(window.errors for window in revision_windows) / requests,
        max(window.p95_ms for window in revision_windows),
    )
    return (
        f"{requests:,} requests, {failed_share:.2%} failed, 95 % within {slowest_p95_ms:.3g} ms at worst, "
        f"{cost:,.0f} slot seconds ({1000 * cost / requests:.3g} for a thousand)"
    )


def format_moment(moment_s: float) -> str:
    """As people read it."""
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%MZ") if moment_s else ""


def format_alarm_start(windows: Sequence[MonitorWindow], finding: DriftFinding, revision: int) -> str:
    """Since when, where windows tell."""
    return format_moment(find_alarm_start(windows, finding, revision))


def _render_table(findings: Sequence[DriftFinding], figures: ReportFigures) -> str:
    head = (
        '<tr><th>what</th><th>column</th><th>segment</th><th>measure</th><th class="n">now</th><th class="n">then</th>'
        '<th class="n">bound</th><th>since</th><th>said</th></tr>'
    )
    rows = "".join(
        f"<tr{' class=alarm' if finding.alarm else ''}><td>{escape_text(finding.what)}</td>"
        f"<td>{escape_text(finding.column)}</td>"
        f"<td>{escape_text(finding.segment)}</td><td>{escape_text(finding.measure)}</td><td "
        f'class="n">{finding.value:.4g}</td>'
        f'<td class="n">{finding.then:.4g}</td><td class="n">{finding.bound:.4g}</td>'
        f"<td>{format_alarm_start(figures.windows, finding, figures.revision) if finding.alarm else ''}</td>"
        f"<td>{escape_text(finding.said)}</td></tr>"
        for finding in findings
    )
    return f"<table>{head}{rows}</table>"
