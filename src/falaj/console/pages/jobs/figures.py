"""What a job did and cost: CPUs, memory and GPUs of its slots, where a training's time went, what attempts held."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.parts import Column, Field
from falaj.console.plots import TIME, Series, bars, line, shares
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.fleet.amounts import seconds
from falaj.fleet.signs import Figure
from falaj.fleet.usage import UsageRow
from falaj.gauge.advice import advise
from falaj.jobs.records import JobView

SUMMARY = "profile/summary.json"
MOST_BYTES = 4 << 20
SPANS = ("1h", "6h", "24h", "7d", "30d")
_NAME = re.compile(r"(r?\d+)\.(\w+)")


def figures(view: View, one: JobView) -> Html:
    """The tab of telemetry."""
    since = view.query("since") if view.query("since") in SPANS else "6h"
    found: tuple[Figure, ...] = view.here.jobs.figures(one.ref, since)
    if not found:
        return join(span_filter(view, since), parts.empty(view, view.t("jobs.no_figures"), view.t("jobs.figures_hint")))
    return join(span_filter(view, since), drawn(view, found, since))


def span_filter(view: View, since: str, spans: Sequence[str] = SPANS) -> Html:
    """How far back to look."""
    known = [(span, view.t.of("jobs.span", span)) for span in spans]
    return parts.filters(view, [Field("since", view.t("console.since"), "select", since, known)])


def drawn(view: View, found: Sequence[Figure], since: str) -> Html:
    """A plot for each kind of figure, a line for each slot, device or rank that has it; a node's page has the same."""
    made = []
    for name, of in grouped(found).items():
        series = [Series(who, moments(view.now, since, len(one.curve)), one.curve) for who, one in of]
        title = view.t.of("jobs.figure", name)
        made.append(h.section(line(view, series, title=str(title), x=TIME, height=200), class_="card"))
    return parts.cards(*made)


def grouped(found: Sequence[Figure]) -> dict[str, list[tuple[str, Figure]]]:
    """By what is measured: whose it is (slot or device `#0`, rank `r0`), and its curve."""
    groups: dict[str, list[tuple[str, Figure]]] = {}
    for one in found:
        match = _NAME.fullmatch(one.name)
        name, who = (match[2], match[1] if match[1][0] == "r" else f"#{match[1]}") if match else (one.name, "")
        groups.setdefault(name, []).append((who, one))
    order = ("busy", "memory", "cpu", "rss", "pace", "load", "available")
    return dict(sorted(groups.items(), key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order)))


def moments(now: float, since: str, steps: int) -> list[float]:
    """The middle of each of so many steps of a window that ends now."""
    span = seconds(since)
    return [now - span + (step + 0.5) * span / max(1, steps) for step in range(steps)]


def profile(view: View, one: JobView) -> Html:
    """Where the time of a training's steps went, if its run kept a profile."""
    kept = view.here.track.artifacts(one.run, deep=True)
    if not any(file.path == SUMMARY for file in kept):
        command = f"falaj train profile {one.ref}"
        return parts.empty(view, view.t("jobs.no_profile"), view.t("jobs.profile_hint"), command)
    summary = _read(b"".join(view.here.track.fetch(one.run, SUMMARY, 0, MOST_BYTES)))
    split, kernels = _numbers(summary.get("split")), summary.get("kernels")
    t = view.t
    went = shares(view, [(str(t.of("jobs.split", name)), value, "") for name, value in split.items()],
                  title=t("jobs.time_went"))  # fmt: skip
    top = [(str(row.get("name", "")), _numbers(row).get("seconds", 0.0))
           for row in (kernels if isinstance(kernels, list) else ())[:15] if isinstance(row, Mapping)]  # fmt: skip
    return join(
        parts.cards(
            h.section(went, class_="card"),
            h.section(bars(view, top, title=t("jobs.kernels"), unit="s"), class_="card"),
        ),
        parts.card(t("jobs.advice"), _advice(view, summary)),
    )  # fmt: skip


def _read(body: bytes) -> dict[str, Any]:
    """What a job wrote may be anything."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _numbers(given: Any) -> dict[str, float]:
    known = given.items() if isinstance(given, Mapping) else ()
    return {str(name): float(value) for name, value in known if isinstance(value, (int, float))}


def _advice(view: View, summary: Mapping[str, Any]) -> Html:
    try:
        found = advise(summary)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        found = []  # written by a job: not every file of that name is a profile
    if not found:
        return h.p(view.t("jobs.no_advice"), class_="soft")
    t = view.t
    columns = (t("jobs.what"), t("jobs.change"), Column(t("jobs.saves"), "n"))
    rows = [(join(h.strong(one.title, dir="auto"), h.br(), h.small(one.evidence, dir="auto")),
             h.span(one.change, dir="auto"), view.percent(one.gain, 0)) for one in found]  # fmt: skip
    return parts.table(view, columns, rows, t("jobs.advice"))


def cost(view: View, one: JobView) -> Html:
    """What its ended attempts held, and what of that came to nothing."""
    since = view.query("since") if view.query("since") in SPANS else "30d"
    rows: tuple[UsageRow, ...] = view.here.jobs.usage(by="job", since=since).rows
    mine = next((row for row in rows if row.name == str(one.ref)), None)
    if mine is None:
        return join(span_filter(view, since), parts.empty(view, view.t("jobs.no_cost"), view.t("jobs.cost_hint")))
    return join(span_filter(view, since), sums(view, mine), split_of(view, mine))


def sums(view: View, row: UsageRow) -> Html:
    """The numbers that matter of what was used."""
    t = view.t
    stats = (
        parts.stat(t("jobs.gpu_hours"), view.number(row.gpu_hours)),
        parts.stat(t("jobs.lost"), view.number(row.lost_gpu_hours), state="bad" if row.lost_gpu_hours else ""),
        parts.stat(t("jobs.idle"), view.number(row.idle_gpu_hours), state="warn" if row.idle_gpu_hours else ""),
        parts.stat(t("jobs.cpu_hours"), view.number(row.cpu_hours)),
        parts.stat(t("jobs.money"), view.number(row.money) if row.money else NOTHING),
        parts.stat(t("jobs.attempts"), view.number(row.attempts)),
    )
    return h.div(stats, class_="stats")


def split_of(view: View, row: UsageRow) -> Html:
    """GPU-hours that were of use, idle, and lost."""
    t = view.t
    if not row.gpu_hours:
        return h.p(t("jobs.no_price") if not row.money else "", class_="soft")
    good = max(0.0, row.gpu_hours - row.lost_gpu_hours - row.idle_gpu_hours)
    cut = [(str(t("jobs.of_use")), good, "ok"), (str(t("jobs.idle")), row.idle_gpu_hours, "held"),
           (str(t("jobs.lost")), row.lost_gpu_hours, "lost")]  # fmt: skip
    return h.section(shares(view, cut, title=t("jobs.gpu_hours")), class_="card")
