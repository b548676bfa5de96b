"""The report as one page: everything in the file, nothing from elsewhere, no script; light or dark as the reader's
screen is. Names and values come from whoever sent them: all of them are escaped."""

from collections.abc import Sequence
from datetime import UTC, datetime

from falaj.drift.records import Finding
from falaj.monitor.drawing import since_when
from falaj.monitor.plots import shown, svg_histogram, svg_timeline
from falaj.monitor.records import Figures, Window

_STYLE = """:root{color-scheme:light dark;--ink:#1d2a33;--paper:#fff;--line:#d9dee2;--then:#b9c4cc;--now:#2f6f8f;
--bad:#b3362b;--soft:#66727a}@media(prefers-color-scheme:dark){:root{--ink:#e4e9ec;--paper:#12181c;--line:#334048;
--then:#4d5b64;
--now:#6db3d3;--bad:#f07b6e;--soft:#98a5ad}}body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;
padding:0 1em;color:var(--ink);background:var(--paper)}table{border-collapse:collapse;width:100%}th,td{text-align:left;
padding:.3em .6em;border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right;
font-variant-numeric:tabular-nums}tr.alarm td:first-child{border-left:4px solid var(--bad)}small{color:var(--soft)}
svg{width:100%;height:auto}svg text{font-size:10px;fill:var(--soft)}.then{fill:var(--then)}.now{fill:var(--now)}
.alarm{fill:var(--bad)}.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(26em,1fr));gap:1.2em}
h3{margin:.4em 0;font-size:1em;overflow-wrap:anywhere}@media print{body{margin:0}tr,.cell{break-inside:avoid}}"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MEANT = ("performance", "estimate", "fairness", "errors", "latency")


def render(figures: Figures, title: str) -> str:
    """The whole page."""
    alarms = [one for one in figures.findings if one.alarm]
    meant = [one for one in figures.findings if one.what in _MEANT]
    others = [one for one in figures.findings if one.what not in _MEANT and not one.alarm]
    parts = [
        f"<h1>{shown(title)}</h1><p>{shown(summary(figures))}</p><p><small>{shown(facts(figures))}</small></p>",
        f"<p>{shown(service(figures))}</p>",
        "<h2>Alarms</h2>" + _table(alarms, figures) if alarms else "<h2>Alarms</h2><p>None.</p>",
        "<h2>What it means</h2>" + _table(meant, figures) if meant else "",
        "<h2>Windows</h2>" + svg_timeline(figures.windows) if figures.windows else "",
        '<h2>Columns</h2><p><small>pale: then; strong: now</small></p><div class="grid">'
        + "".join(f'<div class="cell"><h3>{shown(one.name)}</h3>{svg_histogram(one)}</div>' for one in figures.axes)
        + "</div>",
        "<h2>Everything else that was compared</h2>" + _table(others, figures) if others else "",
    ]
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    view = '<meta name="viewport" content="width=device-width">'
    head = f'<meta charset="utf-8">{policy}{view}<title>{shown(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def summary(figures: Figures) -> str:
    """How it stands, in a sentence."""
    alarms = [one for one in figures.findings if one.alarm]
    columns = sorted({one.column for one in alarms if one.column})
    where = f" in {', '.join(columns[:5])}{' and others' if len(columns) > 5 else ''}" if columns else ""
    rows = f"{figures.rows:,} rows"
    return f"{len(alarms)} alarm{'s' * (len(alarms) > 1)}{where}, on {rows}" if alarms else f"no alarm, on {rows}"


def facts(figures: Figures) -> str:
    """Where the figures are from."""
    said = [f"from {moment(figures.since)} to {moment(figures.until)}"] if figures.since else []
    said += [f"revision {figures.revision}"] if figures.revision else []
    said += [f"against {figures.baseline}"] if figures.baseline else []
    said += [f"{figures.seen:,} rows came"] if figures.seen > figures.rows else []
    return " · ".join([*said, *([figures.note] if figures.note else [])])


def service(figures: Figures) -> str:
    """What answering took, by the windows: requests, failures, time, and slots."""
    mine = [one for one in figures.windows if one.revision == figures.revision]
    requests, cost = sum(one.requests for one in mine), sum(one.cost for one in mine)
    if not requests:
        return ""
    failed, slow = sum(one.errors for one in mine) / requests, max(one.p95_ms for one in mine)
    return (
        f"{requests:,} requests, {failed:.2%} failed, 95 % within {slow:.3g} ms at worst, "
        f"{cost:,.0f} slot seconds ({1000 * cost / requests:.3g} for a thousand)"
    )


def moment(at: float) -> str:
    """As people read it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%MZ") if at else ""


def began(windows: Sequence[Window], one: Finding, revision: int) -> str:
    """Since when, where windows tell."""
    return moment(since_when(windows, one, revision))


def _table(findings: Sequence[Finding], figures: Figures) -> str:
    head = (
        '<tr><th>what</th><th>column</th><th>segment</th><th>measure</th><th class="n">now</th><th class="n">then</th>'
        '<th class="n">bound</th><th>since</th><th>said</th></tr>'
    )
    rows = "".join(
        f"<tr{' class=alarm' if one.alarm else ''}><td>{shown(one.what)}</td><td>{shown(one.column)}</td>"
        f'<td>{shown(one.segment)}</td><td>{shown(one.measure)}</td><td class="n">{one.value:.4g}</td>'
        f'<td class="n">{one.then:.4g}</td><td class="n">{one.bound:.4g}</td>'
        f"<td>{began(figures.windows, one, figures.revision) if one.alarm else ''}</td><td>{shown(one.said)}</td></tr>"
        for one in findings
    )
    return f"<table>{head}{rows}</table>"
