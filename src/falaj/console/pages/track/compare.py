"""Runs beside each other: in what they differ, across all of it at once, and how one metric went in each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.pages.track import curves
from falaj.console.pages.track.shape import MOST_AXES, coordinates
from falaj.console.plots import line
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.track.records import Comparison, Difference

MOST = 50
_CELLS, _BINS = 3000, 150
_ID = re.compile(r"[0-9a-f]{32}")


def compare(view: View) -> Page:
    """Two to fifty runs."""
    t, runs = view.t, chosen(view.asked)
    crumbs = ((t("track.all_runs"), address("track/runs")),)
    if not 2 <= len(runs) <= MOST:
        hint = parts.empty(view, t("track.choose_runs"), t("track.choose_hint", most=MOST))
        return Page(t("track.compare"), hint, crumbs)
    found = view.here.track.compare(runs)
    metrics = [one for one in found.differences if one.kind == "metric"]
    metric = next((one.key for one in metrics if one.key == view.query("metric")), metrics[0].key if metrics else "")
    body = join(
        _table(view, found),
        parts.card(t("track.shape"), _across(view, found, metric)) if metric else EMPTY,
        _overlaid(view, found, [one.key for one in metrics], metric) if metric else EMPTY,
    )
    return Page(t("track.comparing", n=len(runs)), body, crumbs, live=("track",), scripts=("plots.js",), wide=True)


def chosen(asked: Mapping[str, str]) -> tuple[Ref, ...]:
    """The runs of an address: `runs=fraud~ID~ID~other~ID`, or the boxes of a plain form (`r.0=run:fraud/ID`)."""
    found: dict[Ref, None] = {}
    project = ""
    for piece in asked.get("runs", "").split("~"):
        if _ID.fullmatch(piece):
            found[Ref.parse(f"run:{project}/{piece}")] = None
        else:
            project = piece
    found |= {Ref.parse(value): None for key, value in asked.items() if key.startswith("r.")}
    return tuple(found)


def packed(runs: Sequence[Ref]) -> str:
    """Runs for an address, each project said once."""
    projects = dict.fromkeys(run.project for run in runs)
    return "~".join("~".join([one, *(run.name for run in runs if run.project == one)]) for one in projects)


def _table(view: View, found: Comparison) -> Html:
    """What differs, a row each; the lowest and the highest of a metric are marked."""
    t, most = view.t, max(20, _CELLS // len(found.runs))
    shown = sorted(found.differences, key=lambda one: (one.kind != "param", one.key))[:most]
    names = [h.a(h.bdi(title), href=href(run)) for title, run in zip(found.titles, found.runs, strict=True)]
    rows = [
        (join(h.bdi(one.key), " ", h.small(t.of("track.one", one.kind), class_="soft")),
         *(_value(view, one, found.runs[n], value) for n, value in enumerate(one.values)))
        for one in shown
    ]  # fmt: skip
    same = h.p(t("track.same", params=found.same_params, metrics=found.same_metrics), class_="soft")
    if len(found.differences) > most:
        same = join(h.p(t("track.first_differences", n=most), class_="soft"), same)
    heads: list[parts.Column | str] = [t("track.differs"), *(parts.Column(name, "n") for name in names)]
    if not rows:
        return parts.card(t("track.differences"), h.p(t("track.no_differences")), same)
    return parts.card(
        t("track.differences"), h.div(parts.table(view, heads, rows, t("track.differences")), class_="pinned"), same
    )


def _value(view: View, one: Difference, run: Ref, value: str) -> Html:
    shown = h.bdi(value)
    if one.kind != "metric" or run not in (one.lowest, one.highest):
        return shown
    word = view.t("track.highest") if run == one.highest else view.t("track.lowest")
    return join(h.span("▴" if run == one.highest else "▾", title=word, role="img", aria_label=word), " ", shown)


def _across(view: View, found: Comparison, metric: str) -> Html:
    params = [one for one in found.differences if one.kind == "param"][: MOST_AXES - 1]
    last = [one for one in found.differences if one.kind == "metric" and one.key == metric]
    shown = (*params, *last)
    told = [
        (run.name, title, href(run), [one.values[n] or None for one in shown])
        for n, (run, title) in enumerate(zip(found.runs, found.titles, strict=True))
    ]
    return coordinates(view, [one.key for one in shown], told)


def _overlaid(view: View, found: Comparison, metrics: Sequence[str], metric: str) -> Html:
    def drawn() -> Html:
        made = zip(curves.asked(view, found.runs, [metric], _BINS), found.titles, strict=True)
        named = [replace(one, name=title) for one, title in made]
        return line(view, named, title=metric, x=curves.axis(view), log_y=view.query("log") == "1", height=360)

    return parts.card(view.t("track.curves"), curves.choices(view, metrics, metric), curves.whole(view),
                      h.div(view.part(drawn), data_refetch=True))  # fmt: skip
