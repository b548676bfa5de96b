"""A view: its columns and rules, how fresh it is, what came in, how its columns are, and who relies on it."""

from collections.abc import Sequence

from falaj.asof.column_stats import ColumnStats
from falaj.asof.moments import format_span
from falaj.console import components
from falaj.console.components import ColumnHeader
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page
from falaj.console.page_view import PageView
from falaj.console.pages.features.definition_list import render_freshness, render_online_state
from falaj.console.pages.features.definition_parts import render_facts, render_users
from falaj.console.plots import bar_chart, histogram, sparkline
from falaj.core.ref import Ref
from falaj.features.quality import ColumnQuality, ViewQuality, compute_quality
from falaj.features.quality_commands import read_arrival_stats
from falaj.features.records import DefinitionView, RuleDef, ViewDef
from falaj.features.row_stream import ViewDetails
from falaj.features.text_charts import compute_bins
from falaj.server import LocalClient

MAX_SEGMENTS, NUM_BINS = 20, 16


def render_feature_view_page(view: PageView, ref: Ref) -> Page:
    """One view, part by part."""
    t = view.t
    view_definition: DefinitionView = view.here.features.show(ref)
    tab_labels = (("", t("console.overview")), ("quality", t("features.quality")), ("users", t("features.users")))
    render_tab = {"quality": _render_quality, "users": render_users}.get(view.query("tab"), _render_overview)
    body = join_html(components.tabs(view, tab_labels), view.part(lambda: render_tab(view, view_definition)))
    return Page(h.bdi(view_definition.ref.name), body, live=("features",), scripts=("plots.js",))


def _render_overview(view: PageView, view_definition: DefinitionView) -> Html:
    arrival: ViewDetails = view.here.features.about(view_definition.ref)
    return join_html(
        h.div(_render_figures(view, view_definition, arrival), class_="stats"),
        components.card(
            view.t("features.what"),
            render_facts(view, view_definition, _list_source_facts(view, view_definition, arrival.definition)),
        ),
        components.card(view.t("features.columns"), _render_columns(view, arrival.definition)),
        _render_rules(view, arrival.definition.rules),
        components.card(view.t("features.chapters"), _render_segments(view, arrival), id="chapters"),
        components.card(view.t("features.do"), _render_commands(view, view_definition)),
    )


def _render_figures(view: PageView, view_definition: DefinitionView, arrival: ViewDetails) -> Html:
    t = view.t
    num_behind = view_definition.generation - view_definition.filled
    return join_html(
        components.stat_tile(t("features.rows"), view.number(view_definition.rows)),
        components.stat_tile(t("features.newest"), render_freshness(view, view_definition)),
        components.stat_tile(
            t("features.online"),
            render_online_state(view, view_definition),
            t("features.behind", n=num_behind) if num_behind > 0 else "",
        ),
        components.stat_tile(
            t("features.apart"),
            view.number(view_definition.quarantined),
            state="warn" if view_definition.quarantined else "",
        ),
        components.stat_tile(t("features.erased"), view.number(len(arrival.stream.erased))),
    )


def _list_source_facts(view: PageView, view_definition: DefinitionView, definition: ViewDef) -> list[tuple[Html, Html]]:
    source, t = definition.source, view.t
    source_link = (
        components.ref_link(view, source.address) if source.kind == "dataset" else h.code(source.address, dir="ltr")
    )
    return [
        (
            t("features.entity"),
            join_html([components.ref_link(view, entity_ref) for entity_ref in view_definition.uses]),
        ),
        (t("features.source"), join_html(view.t.of("features.from", source.kind), " ", source_link)),
        (t("features.ttl"), h.bdi(format_span(definition.ttl_us)) if definition.ttl_us else EMPTY),
        (t("features.sealed"), components.badge(view, "yes") if definition.sealed else EMPTY),
        (t("console.zone"), h.bdi(definition.zone) if definition.zone else EMPTY),
    ]


def _render_columns(view: PageView, definition: ViewDef) -> Html:
    t = view.t
    rows: list[tuple[Html, Html, Html, Html]] = [
        (
            h.bdi(column.name),
            h.code(column.type, dir="ltr"),
            h.code(f"{column.how}({column.of}) {format_span(column.over_us)}", dir="ltr"),
            EMPTY,
        )
        for column in definition.windows
    ]
    rows += [
        (
            h.bdi(column.name),
            h.code(column.type, dir="ltr"),
            t("features.computed") if column.express else EMPTY,
            h.span(column.about, dir="auto"),
        )
        for column in definition.features
    ]
    headers = (t("console.name"), t("features.type"), t("features.how"), t("features.about"))
    return components.table(view, headers, rows, t("features.columns"))


def _render_rules(view: PageView, rules: tuple[RuleDef, ...]) -> Html:
    if not rules:
        return EMPTY
    t = view.t
    rows = [
        (h.code(rule.kind, dir="ltr"), h.bdi(rule.column), _format_limits(rule), t.of("features.action", rule.action))
        for rule in rules
    ]
    headers = (t("features.rule"), t("console.column"), t("features.limits"), t("features.broken"))
    return components.card(t("features.rules"), components.table(view, headers, rows, t("features.rules")))


def _format_limits(rule: RuleDef) -> Html:
    return h.code(", ".join(f"{limit_name} {value}" for limit_name, value in rule.limits.items()), dir="ltr")


def _render_segments(view: PageView, arrival: ViewDetails) -> Html:
    t, stream = view.t, arrival.stream
    num_waiting = sum(segment.num_rows for segment in stream.tail)
    waiting_note = components.notice("plain", t("features.tail", n=num_waiting)) if num_waiting else None
    newest_segments = sorted(stream.chapters, key=lambda segment: -segment.generation)[:MAX_SEGMENTS]
    if not newest_segments:
        command_line = f"falaj features ingest {stream.view}"
        return join_html(
            waiting_note,
            components.empty_state(view, t("features.no_chapters"), t("features.no_chapters_hint"), command_line),
        )
    rows = [
        components.TableRow(
            (
                view.number(segment.generation),
                view.ago(segment.at),
                t.of("features.came", segment.how),
                view.number(segment.num_rows),
                view.number(segment.quarantined),
                h.span("; ".join(segment.findings), dir="auto"),
                join_html(
                    [h.div(components.ref_link(view, group_ref, short=True)) for group_ref in segment.faces.values()]
                ),
            ),
            id=f"chapter-{segment.generation}",
        )
        for segment in newest_segments
    ]
    headers = (
        ColumnHeader(t("features.generation"), "n"),
        t("console.when"),
        t("features.how"),
        ColumnHeader(t("features.rows"), "n"),
        ColumnHeader(t("features.apart"), "n"),
        t("features.findings"),
        t("console.dataset"),
    )
    return join_html(waiting_note, components.table(view, headers, rows, t("features.chapters")))


def _render_commands(view: PageView, view_definition: DefinitionView) -> Html:
    """What runs beside its caller, since it may run a view's own program: shown to be copied, never done here."""
    ref, entity = view_definition.ref.bare, next(used_ref.bare for used_ref in view_definition.uses)
    commands = (
        (view.t("features.do_fill"), f"falaj features materialize {ref}"),
        (view.t("features.do_plot"), f"falaj features plot {ref} COLUMN"),
        (view.t("features.do_erase"), f'falaj features erase {entity} KEY --reason "request …"'),
    )
    return join_html(
        [
            join_html(h.p(purpose, class_="soft"), components.copyable_code(view, command_line))
            for purpose, command_line in commands
        ]
    )


def _render_quality(view: PageView, view_definition: DefinitionView) -> Html:
    # Beside what the page asks for: it is one command, and is shown as one.
    arrival, stats_by_arrival = read_arrival_stats(
        LocalClient(view.here.house, view.actor, view.here.purpose), view_definition.ref
    )
    quality_report: ViewQuality = compute_quality(arrival.definition, arrival.stream, view.now, stats_by_arrival)
    t = view.t
    reason_list = (
        h.ul([h.li(h.span(item, dir="auto")) for item in quality_report.why])
        if quality_report.why
        else h.p(t("features.well"), class_="soft")
    )
    return join_html(
        components.card(
            t("features.verdict"),
            h.p(components.badge(view, quality_report.verdict)),
            reason_list,
            components.copyable_code(view, f"falaj features quality {view_definition.ref.bare}"),
            id="verdict",
        ),
        components.card(t("features.of_columns"), _render_stats(view, quality_report.columns), id="columns"),
        h.div(
            [
                _render_distribution(view, name, item)
                for name, item in (stats_by_arrival[-1].items() if stats_by_arrival else ())
            ],
            class_="cards",
        ),
    )


def _render_distribution(view: PageView, name: str, stats: ColumnStats) -> Html:
    """The distribution of a column in its last arrival; of a personal one there is none to be seen."""
    bins = compute_bins(stats, stats, NUM_BINS)
    if not bins or not any(count for _, count in bins):
        return h.section(h.h2(h.bdi(name)), h.p(view.t("features.not_drawn"), class_="soft"), class_="card")
    if stats.kind == "text" and stats.values is not None:
        return h.section(
            bar_chart(view, [(bin_label, float(count)) for bin_label, count in bins if count], title=name),
            class_="card",
        )
    return h.section(histogram(view, compute_edges(bins), [count for _, count in bins], title=name), class_="card")


def compute_edges(bins: Sequence[tuple[str, int]]) -> list[float]:
    """Where bins begin, and where the last one ends: as wide as the one before it."""
    starts = [float(name) for name, _ in bins]
    return [*starts, starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else 1.0)]


def _render_stats(view: PageView, columns: tuple[ColumnQuality, ...]) -> Html:
    t, format_number = view.t, view.number
    if not columns:
        return h.p(t("features.no_stats"), class_="soft")
    rows = [
        (
            h.bdi(column_quality.feature),
            format_number(column_quality.rows),
            view.percent(column_quality.nulls),
            format_number(column_quality.distinct),
            format_number(column_quality.mean),
            format_number(column_quality.std),
            format_number(column_quality.low),
            format_number(column_quality.median),
            format_number(column_quality.high),
            _render_trend(view, column_quality.trend),
        )
        for column_quality in columns
    ]
    column_titles = (
        t("features.rows"),
        t("features.nulls"),
        t("features.distinct"),
        t("features.mean"),
        t("features.std"),
        t("features.low"),
        t("features.median"),
        t("features.high"),
    )
    headers = [
        ColumnHeader(t("console.column")),
        *(ColumnHeader(column_quality, "n") for column_quality in column_titles),
        ColumnHeader(t("features.trend")),
    ]
    return components.table(view, headers, rows, t("features.of_columns"))


def _render_trend(view: PageView, block_text: str) -> Html:
    """What a terminal draws of blocks, as a curve."""
    heights = parse_blocks(block_text)
    return sparkline(view, heights, title=str(view.t("features.trend"))) if heights else EMPTY


def parse_blocks(block_text: str) -> list[float]:
    """The heights behind a line of blocks."""
    blocks = " ▁▂▃▄▅▆▇█"
    return [float(blocks.index(character)) for character in block_text if character in blocks]
