"""A view: its columns and rules, how fresh it is, what came in, how its columns are, and who relies on it."""

from collections.abc import Sequence

from falaj.asof.moments import say_span
from falaj.asof.stats import ColumnStats
from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page
from falaj.console.pages.features.defined import facts, users
from falaj.console.pages.features.listing import freshness, online
from falaj.console.parts import Column
from falaj.console.plots import bars, histogram, spark
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.features.drawing import bins_of
from falaj.features.quality import ColumnQuality, Quality, quality
from falaj.features.records import Defined, RuleDef, ViewDef
from falaj.features.stream import Arrival
from falaj.features.watching import measured
from falaj.platform import Platform

CHAPTERS, BINS = 20, 16


def page(view: View, ref: Ref) -> Page:
    """One view, part by part."""
    t = view.t
    one: Defined = view.here.features.show(ref)
    named = (("", t("console.overview")), ("quality", t("features.quality")), ("users", t("features.users")))
    made = {"quality": _quality, "users": users}.get(view.query("tab"), _overview)
    body = join(parts.tabs(view, named), view.part(lambda: made(view, one)))
    return Page(h.bdi(one.ref.name), body, live=("features",), scripts=("plots.js",))


def _overview(view: View, one: Defined) -> Html:
    arrival: Arrival = view.here.features.about(one.ref)
    return join(
        h.div(_figures(view, one, arrival), class_="stats"),
        parts.card(view.t("features.what"), facts(view, one, _more(view, one, arrival.definition))),
        parts.card(view.t("features.columns"), _columns(view, arrival.definition)),
        _rules(view, arrival.definition.rules),
        parts.card(view.t("features.chapters"), _chapters(view, arrival), id="chapters"),
        parts.card(view.t("features.do"), _lines(view, one)),
    )


def _figures(view: View, one: Defined, arrival: Arrival) -> Html:
    t = view.t
    lacks = one.generation - one.filled
    return join(
        parts.stat(t("features.rows"), view.number(one.rows)),
        parts.stat(t("features.newest"), freshness(view, one)),
        parts.stat(t("features.online"), online(view, one), t("features.behind", n=lacks) if lacks > 0 else ""),
        parts.stat(t("features.apart"), view.number(one.quarantined), state="warn" if one.quarantined else ""),
        parts.stat(t("features.erased"), view.number(len(arrival.stream.erased))),
    )


def _more(view: View, one: Defined, given: ViewDef) -> list[tuple[Html, Html]]:
    source, t = given.source, view.t
    from_ = parts.ref(view, source.address) if source.kind == "dataset" else h.code(source.address, dir="ltr")
    return [
        (t("features.entity"), join([parts.ref(view, each) for each in one.uses])),
        (t("features.source"), join(view.t.of("features.from", source.kind), " ", from_)),
        (t("features.ttl"), h.bdi(say_span(given.ttl_us)) if given.ttl_us else EMPTY),
        (t("features.sealed"), parts.badge(view, "yes") if given.sealed else EMPTY),
        (t("console.zone"), h.bdi(given.zone) if given.zone else EMPTY),
    ]


def _columns(view: View, given: ViewDef) -> Html:
    t = view.t
    rows: list[tuple[Html, Html, Html, Html]] = [
        (h.bdi(one.name), h.code(one.type, dir="ltr"),
         h.code(f"{one.how}({one.of}) {say_span(one.over_us)}", dir="ltr"), EMPTY)
        for one in given.windows
    ]  # fmt: skip
    rows += [
        (h.bdi(one.name), h.code(one.type, dir="ltr"), t("features.computed") if one.express else EMPTY,
         h.span(one.about, dir="auto"))
        for one in given.features
    ]  # fmt: skip
    heads = (t("console.name"), t("features.type"), t("features.how"), t("features.about"))
    return parts.table(view, heads, rows, t("features.columns"))


def _rules(view: View, rules: tuple[RuleDef, ...]) -> Html:
    if not rules:
        return EMPTY
    t = view.t
    rows = [(h.code(one.kind, dir="ltr"), h.bdi(one.column), _limits(one), t.of("features.action", one.action))
            for one in rules]  # fmt: skip
    heads = (t("features.rule"), t("console.column"), t("features.limits"), t("features.broken"))
    return parts.card(t("features.rules"), parts.table(view, heads, rows, t("features.rules")))


def _limits(rule: RuleDef) -> Html:
    return h.code(", ".join(f"{name} {value}" for name, value in rule.limits.items()), dir="ltr")


def _chapters(view: View, arrival: Arrival) -> Html:
    t, stream = view.t, arrival.stream
    waiting = sum(one.num_rows for one in stream.tail)
    tail = parts.notice("plain", t("features.tail", n=waiting)) if waiting else None
    newest = sorted(stream.chapters, key=lambda one: -one.generation)[:CHAPTERS]
    if not newest:
        line = f"falaj features ingest {stream.view}"
        return join(tail, parts.empty(view, t("features.no_chapters"), t("features.no_chapters_hint"), line))
    rows = [
        parts.Row((view.number(one.generation), view.ago(one.at), t.of("features.came", one.how),
                   view.number(one.num_rows), view.number(one.quarantined),
                   h.span("; ".join(one.findings), dir="auto"),
                   join([h.div(parts.ref(view, face, short=True)) for face in one.faces.values()])),
                  id=f"chapter-{one.generation}")
        for one in newest
    ]  # fmt: skip
    heads = (Column(t("features.generation"), "n"), t("console.when"), t("features.how"),
             Column(t("features.rows"), "n"), Column(t("features.apart"), "n"), t("features.findings"),
             t("console.dataset"))  # fmt: skip
    return join(tail, parts.table(view, heads, rows, t("features.chapters")))


def _lines(view: View, one: Defined) -> Html:
    """What runs beside its caller, since it may run a view's own program: shown to be copied, never done here."""
    ref, entity = one.ref.bare, next(each.bare for each in one.uses)
    shown = (
        (view.t("features.do_fill"), f"falaj features materialize {ref}"),
        (view.t("features.do_plot"), f"falaj features plot {ref} COLUMN"),
        (view.t("features.do_erase"), f'falaj features erase {entity} KEY --reason "request …"'),
    )
    return join([join(h.p(words, class_="soft"), parts.copyable(view, line)) for words, line in shown])


def _quality(view: View, one: Defined) -> Html:
    # Beside what the page asks for: it is one command, and is shown as one.
    about, stats = measured(Platform(view.here.house, view.actor, view.here.purpose), one.ref)
    found: Quality = quality(about.definition, about.stream, view.now, stats)
    t = view.t
    why = (
        h.ul([h.li(h.span(each, dir="auto")) for each in found.why])
        if found.why
        else h.p(t("features.well"), class_="soft")
    )
    return join(
        parts.card(t("features.verdict"), h.p(parts.badge(view, found.verdict)), why,
                   parts.copyable(view, f"falaj features quality {one.ref.bare}"), id="verdict"),
        parts.card(t("features.of_columns"), _stats(view, found.columns), id="columns"),
        h.div([_drawn(view, name, each) for name, each in (stats[-1].items() if stats else ())], class_="cards"),
    )  # fmt: skip


def _drawn(view: View, name: str, stats: ColumnStats) -> Html:
    """The distribution of a column in its last arrival; of a personal one there is none to be seen."""
    bins = bins_of(stats, stats, BINS)
    if not bins or not any(count for _, count in bins):
        return h.section(h.h2(h.bdi(name)), h.p(view.t("features.not_drawn"), class_="soft"), class_="card")
    if stats.kind == "text" and stats.values is not None:
        return h.section(bars(view, [(each, float(count)) for each, count in bins if count], title=name), class_="card")
    return h.section(histogram(view, edges_of(bins), [count for _, count in bins], title=name), class_="card")


def edges_of(bins: Sequence[tuple[str, int]]) -> list[float]:
    """Where bins begin, and where the last one ends: as wide as the one before it."""
    starts = [float(name) for name, _ in bins]
    return [*starts, starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else 1.0)]


def _stats(view: View, columns: tuple[ColumnQuality, ...]) -> Html:
    t, n = view.t, view.number
    if not columns:
        return h.p(t("features.no_stats"), class_="soft")
    rows = [
        (h.bdi(one.feature), n(one.rows), view.percent(one.nulls), n(one.distinct), n(one.mean), n(one.std),
         n(one.low), n(one.median), n(one.high), _trend(view, one.trend))
        for one in columns
    ]  # fmt: skip
    names = (t("features.rows"), t("features.nulls"), t("features.distinct"), t("features.mean"), t("features.std"),
             t("features.low"), t("features.median"), t("features.high"))  # fmt: skip
    heads = [Column(t("console.column")), *(Column(one, "n") for one in names), Column(t("features.trend"))]
    return parts.table(view, heads, rows, t("features.of_columns"))


def _trend(view: View, drawn: str) -> Html:
    """What a terminal draws of blocks, as a curve."""
    heights = levels(drawn)
    return spark(view, heights, title=str(view.t("features.trend"))) if heights else EMPTY


def levels(drawn: str) -> list[float]:
    """The heights behind a line of blocks."""
    blocks = " ▁▂▃▄▅▆▇█"
    return [float(blocks.index(one)) for one in drawn if one in blocks]
