"""What every definition has: its facts, its columns, and who relies on it. An entity has no more than that."""

from falaj.console import components
from falaj.console.components import ColumnHeader
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.plots import GraphNode, node_graph
from falaj.core.ref import Ref
from falaj.features.records import DefinitionView


def render_entity_page(view: PageView, ref: Ref) -> Page:
    """An entity: its keys, and what it is about."""
    entity_definition: DefinitionView = view.here.features.show(ref)
    subject_name = entity_definition.definition.get("subject", "")
    extra_facts = [(view.t("features.subject"), h.bdi(subject_name))] if subject_name else []
    feature_views = view.here.features.list(kind="view", project=ref.project, limit=50).items
    own_views = [
        feature_view
        for feature_view in feature_views
        if any(used_ref.bare == entity_definition.ref.bare for used_ref in feature_view.uses)
    ]
    rows = [
        (
            components.ref_link(view, feature_view.ref.bare),
            view.number(feature_view.rows),
            h.span(feature_view.about, dir="auto"),
        )
        for feature_view in own_views
    ]
    headers = (view.t("console.name"), ColumnHeader(view.t("features.rows"), "n"), view.t("features.about"))
    body = join_html(
        components.card(view.t("console.overview"), render_facts(view, entity_definition, extra_facts)),
        components.card(view.t("features.keys"), render_columns(view, entity_definition.columns)),
        components.card(view.t("features.views"), components.table(view, headers, rows, view.t("features.views"))),
    )
    return Page(h.bdi(entity_definition.ref.name), body, live=("features",))


def render_facts(view: PageView, definition: DefinitionView, extra_facts: list[tuple[Html, Html]]) -> Html:
    """Version, owner, words, label, and what is of its kind alone."""
    label = join_html([components.tag(regime) for regime in sorted(definition.label.regimes)])
    tags = join_html([components.tag(f"{key}={value}") for key, value in definition.tags.items()])
    return components.fact_list(
        [
            (view.t("console.version"), h.bdi(definition.ref.version)),
            (view.t("console.owner"), h.bdi(definition.owner)),
            (view.t("console.made"), view.when(definition.at)),
            (view.t("features.about"), h.span(definition.about, dir="auto")),
            (view.t("features.law"), label),
            (view.t("console.tags"), tags),
            *extra_facts,
        ]
    )


def render_columns(view: PageView, column_texts: tuple[str, ...]) -> Html:
    """Names and types."""
    rows = [
        (h.bdi(column_text.rpartition(" ")[0]), h.code(column_text.rpartition(" ")[2], dir="ltr"))
        for column_text in column_texts
    ]
    headers = (view.t("console.name"), view.t("features.type"))
    return components.table(view, headers, rows, view.t("features.columns"))


def render_users(view: PageView, definition: DefinitionView) -> Html:
    """What it is made of, and everything that was made with it, as a graph whose nodes are links."""
    user_refs: tuple[Ref, ...] = view.here.features.users(definition.ref)
    nodes = [
        GraphNode(
            str(ref),
            ref.name,
            str(join_html(view.t.of("features.kind", ref.kind), " ", ref.version)),
            link=build_resource_url(ref),
        )
        for ref in (*definition.uses, definition.ref, *user_refs)
    ]
    chart = node_graph(
        view,
        nodes,
        list_dependency_edges(definition.ref, definition.uses, user_refs),
        title=str(view.t("features.users")),
    )
    if user_refs:
        return chart
    return join_html(chart, h.p(view.t("features.no_users"), class_="soft"))


def list_dependency_edges(center: Ref, uses: tuple[Ref, ...], user_refs: tuple[Ref, ...]) -> list[tuple[str, str]]:
    """Edges: services from the view, training sets from services, models from training sets, where there are such."""
    edges = [(str(ref), str(center)) for ref in uses]
    previous_level = [center]
    for kind in ("service", "dataset", "model"):
        level_refs = [ref for ref in user_refs if ref.kind == kind]
        edges += [(str(upstream_ref), str(ref)) for upstream_ref in previous_level for ref in level_refs]
        previous_level = level_refs or previous_level
    return edges
