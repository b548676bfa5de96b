"""Stages: what holds which and since when, the evidence beside the button that promotes, and the way back."""

from falaj.catalog.lifecycle_records import AliasBinding
from falaj.catalog.records import CatalogVersion
from falaj.console import components
from falaj.console.components import FormField, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.catalog.promotion_gate import render_gates
from falaj.console.pages.catalog.version_parts import (
    make_breadcrumbs,
    parse_catalog_ref,
    render_aliases,
    render_summary,
    render_title,
    render_version_tabs,
)
from falaj.console.plots import TimelineSpan, timeline
from falaj.core.ref import Ref

_MAX_SHOWN = 100
_GATED_STAGES = ("production", "staging")


def render_stages_page(view: PageView) -> Page:
    """Of a version: what each gate finds of it. Of every name: what held its stages when, and how to go back."""
    ref = parse_catalog_ref(view)
    version: CatalogVersion | None = view.here.catalog.show(ref) if ref.version else None
    ref = version.ref if version else ref
    history: tuple[AliasBinding, ...] = view.here.catalog.history(ref.bare)
    body = join_html(
        render_version_tabs(view, ref, "stages"),
        render_summary(view, version) if version else None,
        render_gates(view, version) if version and version.state == "live" else None,
        _render_rollback_cards(view, ref.bare, history),
        _render_history(view, ref, history),
    )
    return Page(
        render_title(ref),
        body,
        make_breadcrumbs(view, ref),
        ("catalog", "approvals", "serve", "monitor"),
        scripts=("plots.js",),
    )


def _render_history(view: PageView, ref: Ref, history: tuple[AliasBinding, ...]) -> Html:
    t = view.t
    if not history:
        hint, command_line = t("catalog.no_history_hint"), f"falaj catalog promote {ref.bare}@v1 staging"
        return components.card(
            t("console.history"),
            components.empty_state(view, t("catalog.no_history"), hint, command_line),
            id="history",
        )
    rank_by_alias = {"production": 0, "staging": 1}
    bindings = sorted(history, key=lambda binding: (rank_by_alias.get(binding.alias, 2), binding.alias, binding.since))
    spans = [
        TimelineSpan(
            t.of("catalog.stage", binding.alias),
            binding.ref.version,
            binding.since,
            binding.until or view.now,
            "production" if binding.alias == "production" and not binding.until else "",
            "",
        )
        for binding in bindings[-_MAX_SHOWN:]
    ]
    chart = timeline(view, spans, title=t("catalog.held_when"))
    return components.card(t("console.history"), chart, _render_table(view, history), id="history")


def _render_table(view: PageView, history: tuple[AliasBinding, ...]) -> Html:
    t = view.t
    newest_bindings = sorted(history, key=lambda binding: binding.since, reverse=True)[:_MAX_SHOWN]
    rows = [
        TableRow(
            (
                render_aliases(view, binding.ref, (binding.alias,)),
                components.ref_link(view, binding.ref, short=True),
                view.when(binding.since),
                view.when(binding.until) if binding.until else t("catalog.until_now"),
                t.of("catalog.done_by", binding.how.partition(" by ")[0]),
                _render_actor(binding.by),
                _render_approvers(view, binding),
                h.span(binding.why[:300], dir="auto"),
            )
        )
        for binding in newest_bindings
    ]
    headers = (
        t("catalog.stage_alias"),
        t("console.version"),
        t("console.since"),
        t("console.until"),
        t("catalog.how"),
        t("console.by"),
        t("catalog.approved_by"),
        t("console.reason"),
    )
    return components.table(view, headers, rows, t("console.history"))


def _render_actor(name: str) -> Html:
    """Whoever did it; what works for somebody has a long name."""
    return h.bdi(name if len(name) <= 20 else f"{name[:12]}…{name[-4:]}", title=name)


def _render_approvers(view: PageView, binding: AliasBinding) -> Html:
    names = join_html([h.bdi(approver, " ") for approver in binding.approved_by])
    link = (
        h.a(view.t("catalog.approval"), href=build_resource_url(Ref.parse(binding.approval).bare))
        if binding.approval
        else None
    )
    return join_html(names, " ", link)


def find_earlier_versions(history: tuple[AliasBinding, ...], alias: str) -> tuple[str, list[str]]:
    """The version that an alias means now, and those it meant before, the latest first."""
    alias_bindings = sorted((item for item in history if item.alias == alias), key=lambda item: item.since)
    current_version = next((item.ref.version for item in alias_bindings if not item.until), "")
    return current_version, [
        item for item in dict.fromkeys(item.ref.version for item in reversed(alias_bindings)) if item != current_version
    ]


def _render_rollback_cards(view: PageView, name: Ref, history: tuple[AliasBinding, ...]) -> Html:
    """For each stage: what holds it, and a button that brings an earlier one back."""
    t, cards = view.t, list[Html]()
    for alias in _GATED_STAGES:
        current_version, earlier_versions = find_earlier_versions(history, alias)
        if not current_version and not earlier_versions:
            continue
        holder = (
            components.ref_link(view, name.at(current_version), short=True)
            if current_version
            else h.span(t("console.none"), class_="soft")
        )
        current_binding = next(
            (binding for binding in reversed(history) if binding.alias == alias and not binding.until), None
        )
        holder_facts = components.fact_list(
            [
                (t("catalog.holds_now"), holder),
                (t("console.since"), view.when(current_binding.since) if current_binding else ""),
                (t("console.by"), h.bdi(current_binding.by) if current_binding else ""),
            ]
        )
        button = (
            _render_rollback_button(view, name, alias, earlier_versions)
            if earlier_versions
            else h.p(t("catalog.nothing_before"), class_="soft")
        )
        cards.append(components.card(t.of("catalog.stage", alias), holder_facts, button, id=f"holds-{alias}"))
    return components.card_grid(*cards) if cards else EMPTY


def _render_rollback_button(view: PageView, name: Ref, alias: str, earlier_versions: list[str]) -> Html:
    t = view.t
    fields = (
        FormField(
            "to",
            t("catalog.back_to"),
            "select",
            earlier_versions[0],
            [(earlier_version, h.bdi(earlier_version)) for earlier_version in earlier_versions],
        ),
        FormField("reason", t("console.reason"), required=True),
    )
    return components.action_button(
        view,
        "catalog",
        "rollback",
        {"name": name, "alias": alias},
        t("catalog.roll_back"),
        fields,
        danger=True,
        confirm=t("catalog.roll_back_means"),
        id=f"rollback-{alias}",
    )
