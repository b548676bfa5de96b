"""A profile as one page: plots drawn here, no script, nothing from elsewhere; to be read on paper, too."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from falaj.gauge.advice import advise

_COLOURS = {
    "compute": "#2f6f4f", "communication": "#b5651d", "input": "#3a6ea5", "host": "#8a5a9e", "idle": "#9a9a9a"
}  # fmt: skip
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25em .6em;border-bottom:1px solid #ddd}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.k{font:12px/1.4 monospace;overflow-wrap:anywhere}
svg{width:100%;height:auto}h2{margin-top:1.6em}small{color:#666}@media print{body{margin:0}tr{break-inside:avoid}}"""
_WIDE, _HIGH = 900, 160


def render(summary: Mapping[str, Any]) -> str:
    """The page of a summary."""
    facts, span_s = summary.get("facts", {}), summary.get("span_s", 0.0)
    title = f"Profile of {facts.get('run') or 'a training'}"
    known = (f"{name.replace('_', ' ')}: {_number(value)}" for name, value in facts.items() if name != "run")
    parts = [
        f"<h1>{escape(title)}</h1><p>{summary.get('steps', 0)} steps, {span_s:.3f} s</p>",
        f"<p><small>{escape(' · '.join(known))}</small></p>",
        "<h2>Where the time went</h2>" + _bar(summary.get("split", {}), span_s),
        "<h2>What to change</h2>" + _advice(summary),
        "<h2>Steps</h2>" + _bars(summary.get("step_s", ())),
        "<h2>Memory</h2>" + _area(summary.get("memory", ())),
        "<h2>Kernels</h2>" + _kernels(summary.get("kernels", ())),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _bar(split: Mapping[str, float], span_s: float) -> str:
    at, drawn, rows = 0.0, [], []
    for name, seconds in split.items():
        share, colour = seconds / span_s if span_s else 0.0, _COLOURS.get(name, "#444")
        drawn.append(f'<rect x="{at * _WIDE:.1f}" width="{share * _WIDE:.1f}" height="36" fill="{colour}"/>')
        mark = f'<span style="color:{colour}">&#9632;</span>'
        rows.append(_row(f"<td>{mark} {escape(name)}</td>", f"{seconds:.4f} s", f"{share:.1%}"))
        at += share
    return f"{_svg(drawn, 36, 'shares of the time')}<table>{''.join(rows)}</table>"


def _advice(summary: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td><b>{escape(one.title)}</b><br><small>{escape(one.evidence)}</small></td>"
        f'<td>{escape(one.change)}</td><td class="n">{one.gain:.0%}</td></tr>'
        for one in advise(summary)
    ]
    head = '<tr><th>what, and what says so</th><th>change</th><th class="n">saves up to</th></tr>'
    return f"<table>{head}{''.join(rows)}</table>" if rows else "<p>Nothing stands out.</p>"


def _bars(values: Sequence[float]) -> str:
    most, wide = max(values, default=0.0) or 1.0, _WIDE / max(1, len(values))
    drawn = []
    for place, value in enumerate(values):
        high, left = (_HIGH - 20) * value / most, place * wide
        drawn.append(
            f'<rect x="{left:.1f}" y="{_HIGH - high:.1f}" width="{wide - 4:.1f}" height="{high:.1f}" fill="#2f6f4f"/>'
        )
        drawn.append(f'<text x="{left:.1f}" y="{_HIGH - high - 4:.1f}" font-size="12">{1000 * value:.1f} ms</text>')
    return _svg(drawn, _HIGH, "time of each step")


def _area(points: Sequence[Sequence[float]]) -> str:
    most = max((bytes_ for _, bytes_ in points), default=0.0)
    if most <= 0:
        return "<p>Nothing was recorded.</p>"
    last = points[-1][0] or 1.0
    path = " ".join(
        f"{_WIDE * at / last:.1f},{_HIGH - (_HIGH - 20) * max(0.0, held) / most:.1f}" for at, held in points
    )
    drawn = [f'<polygon points="0,{_HIGH} {path} {_WIDE},{_HIGH}" fill="#3a6ea5" fill-opacity=".35" stroke="#3a6ea5"/>']
    drawn.append(f'<text x="4" y="14" font-size="12">peak {escape(_number(most))} B</text>')
    return _svg(drawn, _HIGH, "memory over time")


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> str:
    head = '<tr><th>name</th><th class="n">seconds</th><th class="n">share</th><th class="n">calls</th></tr>'
    rows = (
        _row(
            f'<td class="k">{escape(str(one["name"]))}</td>',
            f"{one['seconds']:.4f}",
            f"{one['share']:.1%}",
            str(one["count"]),
        )
        for one in kernels
    )
    return f"<table>{head}{''.join(rows)}</table>"


def _row(first: str, *numbers: str) -> str:
    cells = "".join(f'<td class="n">{escape(number)}</td>' for number in numbers)
    return f"<tr>{first}{cells}</tr>"


def _svg(drawn: Sequence[str], high: int, label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDE} {high}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
