"""A profile as one page: plots drawn here, no script, nothing from elsewhere; to be read on paper, too."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from falaj.gauge.advice import list_advice

_COLOURS = {"compute": "#2f6f4f", "communication": "#b5651d", "input": "#3a6ea5", "host": "#8a5a9e", "idle": "#9a9a9a"}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25em .6em;border-bottom:1px solid #ddd}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.k{font:12px/1.4 monospace;overflow-wrap:anywhere}
svg{width:100%;height:auto}h2{margin-top:1.6em}small{color:#666}@media print{body{margin:0}tr{break-inside:avoid}}"""
_WIDTH, _HEIGHT = 900, 160


def render_profile(summary: Mapping[str, Any]) -> str:
    """The page of a summary."""
    facts, span_s = summary.get("facts", {}), summary.get("span_s", 0.0)
    title = f"Profile of {facts.get('run') or 'a training'}"
    fact_texts = (f"{name.replace('_', ' ')}: {_format_value(value)}" for name, value in facts.items() if name != "run")
    parts = [
        f"<h1>{escape(title)}</h1><p>{summary.get('steps', 0)} steps, {span_s:.3f} s</p>",
        f"<p><small>{escape(' · '.join(fact_texts))}</small></p>",
        "<h2>Where the time went</h2>" + _render_split(summary.get("split", {}), span_s),
        "<h2>What to change</h2>" + _render_advice(summary),
        "<h2>Steps</h2>" + _render_steps(summary.get("step_s", ())),
        "<h2>Memory</h2>" + _render_memory(summary.get("memory", ())),
        "<h2>Kernels</h2>" + _render_kernels(summary.get("kernels", ())),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _render_split(split: Mapping[str, float], span_s: float) -> str:
    offset, shapes, rows = 0.0, [], []
    for name, seconds in split.items():
        share, colour = seconds / span_s if span_s else 0.0, _COLOURS.get(name, "#444")
        shapes.append(f'<rect x="{offset * _WIDTH:.1f}" width="{share * _WIDTH:.1f}" height="36" fill="{colour}"/>')
        swatch = f'<span style="color:{colour}">&#9632;</span>'
        rows.append(_render_row(f"<td>{swatch} {escape(name)}</td>", f"{seconds:.4f} s", f"{share:.1%}"))
        offset += share
    return f"{_render_svg(shapes, 36, 'shares of the time')}<table>{''.join(rows)}</table>"


def _render_advice(summary: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td><b>{escape(advice.title)}</b><br><small>{escape(advice.evidence)}</small></td>"
        f'<td>{escape(advice.change)}</td><td class="n">{advice.gain:.0%}</td></tr>'
        for advice in list_advice(summary)
    ]
    head = '<tr><th>what, and what says so</th><th>change</th><th class="n">saves up to</th></tr>'
    return f"<table>{head}{''.join(rows)}</table>" if rows else "<p>Nothing stands out.</p>"


def _render_steps(values: Sequence[float]) -> str:
    max_value, bar_width = max(values, default=0.0) or 1.0, _WIDTH / max(1, len(values))
    shapes = []
    for index, value in enumerate(values):
        bar_height, left_x = (_HEIGHT - 20) * value / max_value, index * bar_width
        shapes.append(
            f'<rect x="{left_x:.1f}" y="{_HEIGHT - bar_height:.1f}" width="{bar_width - 4:.1f}" '
            f'height="{bar_height:.1f}" fill="#2f6f4f"/>'
        )
        shapes.append(
            f'<text x="{left_x:.1f}" y="{_HEIGHT - bar_height - 4:.1f}" font-size="12">{1000 * value:.1f} ms</text>'
        )
    return _render_svg(shapes, _HEIGHT, "time of each step")


def _render_memory(points: Sequence[Sequence[float]]) -> str:
    max_bytes = max((point_bytes for _, point_bytes in points), default=0.0)
    if max_bytes <= 0:
        return "<p>Nothing was recorded.</p>"
    end_s = points[-1][0] or 1.0
    path = " ".join(
        f"{_WIDTH * time_s / end_s:.1f},{_HEIGHT - (_HEIGHT - 20) * max(0.0, used_bytes) / max_bytes:.1f}"
        for time_s, used_bytes in points
    )
    shapes = [
        f'<polygon points="0,{_HEIGHT} {path} {_WIDTH},{_HEIGHT}" fill="#3a6ea5" fill-opacity=".35" stroke="#3a6ea5"/>'
    ]
    shapes.append(f'<text x="4" y="14" font-size="12">peak {escape(_format_value(max_bytes))} B</text>')
    return _render_svg(shapes, _HEIGHT, "memory over time")


def _render_kernels(kernels: Sequence[Mapping[str, Any]]) -> str:
    head = '<tr><th>name</th><th class="n">seconds</th><th class="n">share</th><th class="n">calls</th></tr>'
    rows = (
        _render_row(
            f'<td class="k">{escape(str(kernel["name"]))}</td>',
            f"{kernel['seconds']:.4f}",
            f"{kernel['share']:.1%}",
            str(kernel["count"]),
        )
        for kernel in kernels
    )
    return f"<table>{head}{''.join(rows)}</table>"


def _render_row(first_cell: str, *numbers: str) -> str:
    number_cells = "".join(f'<td class="n">{escape(number)}</td>' for number in numbers)
    return f"<tr>{first_cell}{number_cells}</tr>"


def _render_svg(shapes: Sequence[str], height: int, label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(shapes)}</svg>'


def _format_value(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
