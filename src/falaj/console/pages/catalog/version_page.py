"""A name and its versions; a version: what it is, its label, its columns, its origin, who says what of it."""

from falaj.catalog.lifecycle_records import NameView, VersionAttestation
from falaj.catalog.records import CatalogVersion
from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.catalog import model_card, schema
from falaj.console.pages.catalog.version_parts import (
    build_version_url,
    make_breadcrumbs,
    parse_catalog_ref,
    render_aliases,
    render_label_card,
    render_stage,
    render_summary,
    render_title,
    render_version_tabs,
)
from falaj.core.ref import Ref

_PAGE_SIZE, _MAX_SHOWN, _MAX_PER_KIND = 100, 20, 5
_KIND_ORDER = ("endpoint", "model", "dataset", "service", "view", "code", "turn", "job", "run")
HIDDEN_KINDS = frozenset({"approval", "replica"})


def render_catalog_page(view: PageView) -> Page:
    """The page of a name, or of one version of it."""
    ref = parse_catalog_ref(view)
    return _render_version_page(view, ref) if ref.version else _render_name_page(view, ref)


def _render_name_page(view: PageView, ref: Ref) -> Page:
    named: NameView = view.here.catalog.about(ref)
    t = view.t
    tags = [h.span(h.bdi(key), ": ", h.bdi(value), class_="tag") for key, value in sorted(named.tags.items())]
    alias_links = [
        h.div(render_aliases(view, ref, (alias,)), " → ", components.ref_link(view, ref.at(version), short=True))
        for alias, version in sorted(named.aliases.items())
    ]
    about_card = components.card(
        t("catalog.about"),
        h.p(named.about, dir="auto") if named.about else h.p(t("catalog.no_about"), class_="soft"),
        components.fact_list(
            [
                (t("console.tags"), join_html(tags)),
                (t("catalog.aliases"), join_html(alias_links)),
                (t("console.owner"), h.bdi(named.author)),
                (t("catalog.first"), view.when(named.made_at)),
                (t("catalog.how_many"), view.number(named.count)),
            ]
        ),
        h.div(_render_describe_button(view, named), class_="actions"),
        id="about",
    )
    version_card = components.card(t("console.versions"), view.part(lambda: _render_versions(view, ref)), id="versions")
    return Page(
        render_title(ref),
        join_html(render_version_tabs(view, ref, ""), about_card, version_card),
        make_breadcrumbs(view, ref),
        ("catalog",),
    )


def _render_describe_button(view: PageView, named: NameView) -> Html:
    field = FormField("about", view.t("catalog.about"), "textarea", named.about)
    return components.action_button(
        view, "catalog", "describe", {"name": named.ref}, view.t("catalog.describe"), (field,)
    )


def _render_versions(view: PageView, ref: Ref) -> Html:
    page = view.here.catalog.list(
        kind=ref.kind, project=ref.project, name=ref.name, after=view.query("page"), limit=_PAGE_SIZE
    )
    if not page.versions:
        command_line = f"falaj catalog publish {ref} ./folder"
        return components.empty_state(view, view.t("catalog.no_version"), view.t("catalog.empty_hint"), command_line)
    t = view.t
    metric_names = tuple(
        dict.fromkeys(key for version in page.versions if version.card for key in version.card.metrics)
    )[:3]
    columns: tuple[ColumnHeader | Html | str, ...] = (
        t("console.version"),
        t("catalog.stage_alias"),
        t("catalog.message"),
        ColumnHeader(t("console.size"), "n"),
        *(ColumnHeader(h.bdi(metric_name), "n") for metric_name in metric_names),
        t("console.by"),
        t("console.made"),
        "",
    )
    rows = [_make_version_row(view, version, metric_names) for version in page.versions]
    return join_html(components.table(view, columns, rows, t("console.versions")), components.pager(view, page.next))


def _make_version_row(view: PageView, version: CatalogVersion, metric_names: tuple[str, ...]) -> TableRow:
    other_aliases = tuple(alias for alias in version.aliases if alias != version.stage)
    metrics = version.card.metrics if version.card else {}
    has_previous = parse_version_number(version.ref) > 1
    cells = (
        components.ref_link(view, version.ref, short=True),
        join_html(render_stage(view, version.stage), " ", render_aliases(view, version.ref, other_aliases)),
        h.span(version.message[:200], dir="auto"),
        view.bytes(version.size_bytes),
        *(view.number(metrics[metric_name]) if metric_name in metrics else "" for metric_name in metric_names),
        h.bdi(version.author),
        view.ago(version.made_at),
        h.a(view.t("catalog.compare"), href=build_version_url(version.ref, "diff")) if has_previous else "",
    )
    return TableRow(cells, id=f"v-{version.ref.version}")


def parse_version_number(ref: Ref) -> int:
    """v12 is 12; anything else comes first."""
    return int(ref.version[1:]) if ref.version[1:].isdecimal() else 0


def _render_version_page(view: PageView, ref: Ref) -> Page:
    version: CatalogVersion = view.here.catalog.show(ref)
    if version.ref.version != ref.version:
        ref = version.ref
    body = join_html(
        render_version_tabs(view, ref, ""),
        render_summary(view, version),
        components.card_grid(_render_facts(view, version), render_label_card(view, version.label)),
        schema.render_schema(view, version) if version.table else None,
        model_card.render_model_cards(view, version) if version.card else None,
        components.card_grid(
            components.card(
                view.t("catalog.origins"),
                view.part(lambda: _render_neighbours(view, version)),
                id="origins",
                heading_link=build_version_url(ref, "lineage"),
            ),
            components.card(view.t("catalog.evidence"), view.part(lambda: _render_evidence(view, ref)), id="evidence"),
        ),
        _render_actions(view, version) if version.state == "live" else None,
    )
    return Page(render_title(ref), body, make_breadcrumbs(view, ref), ("catalog", "serve"))


def _render_facts(view: PageView, version: CatalogVersion) -> Html:
    t = view.t
    tags = [h.span(h.bdi(key), ": ", h.bdi(value), class_="tag") for key, value in sorted(version.tags.items())]
    return components.card(
        t("console.details"),
        components.fact_list(
            [
                (t("console.size"), view.bytes(version.size_bytes)),
                (t("console.files"), h.a(view.number(version.num_files), href=build_version_url(version.ref, "files"))),
                (t("catalog.rows"), view.number(version.table.rows) if version.table else ""),
                (t("console.made"), join_html(view.when(version.made_at), " · ", h.bdi(version.author))),
                (
                    t("console.zone"),
                    join_html(
                        [components.ref_link(view, Ref("zone", "zones", zone), short=True) for zone in version.zones]
                    ),
                ),
                (
                    t("catalog.signature"),
                    t("catalog.signed")
                    if version.signed
                    else t("catalog.unsigned")
                    if version.ref.kind == "model"
                    else "",
                ),
                (t("catalog.pinned"), t("catalog.pinned_yes") if version.pinned else ""),
                (t("console.tags"), join_html(tags)),
                (t("catalog.digest"), h.code(f"{version.root[:23]}…", dir="ltr", title=version.root)),
            ]
        ),
        id="facts",
    )


def _render_neighbours(view: PageView, version: CatalogVersion) -> Html:
    """What it was made from and who uses it: one step each way; the graph shows the rest, runs and jobs too."""
    t, ref = view.t, version.ref
    inputs = list(version.inputs.items())
    endpoints = view.here.serve.list(project=ref.project, limit=200).endpoints if ref.kind == "model" else ()
    endpoint_refs = [item.ref.bare for item in endpoints if any(revision.model == ref for revision in item.revisions)]
    users = [("", item) for item in (*endpoint_refs, *view.here.catalog.users(ref))]
    return join_html(
        h.h3(t("catalog.made_from")),
        _render_refs_by_kind(view, inputs),
        h.h3(t("catalog.went_into")),
        _render_refs_by_kind(view, users),
        h.p(h.a(t("catalog.walk"), href=build_version_url(ref, "lineage"))),
        h.p(
            t("catalog.as_statement"),
            " ",
            h.a("SLSA", href=build_version_url(ref, "provenance", form="slsa")),
            " · ",
            h.a("CycloneDX", href=build_version_url(ref, "provenance", form="cyclonedx")),
            class_="small",
        ),
    )


def _render_refs_by_kind(view: PageView, refs: list[tuple[str, Ref]]) -> Html:
    """By kind, what people look for first; of each kind a few."""
    if not refs:
        return h.p(view.t("console.none"), class_="soft")
    links_by_kind: dict[str, list[Html]] = {}
    for role, ref in refs:
        role_label = h.span(h.bdi(role), ": ", class_="soft") if role else None
        links_by_kind.setdefault(ref.kind, []).append(
            h.div(role_label, components.ref_link(view, to_display_ref(str(ref)), short=True))
        )
    order = sorted(
        links_by_kind, key=lambda kind: (_KIND_ORDER.index(kind) if kind in _KIND_ORDER else len(_KIND_ORDER), kind)
    )
    return components.fact_list(
        [(view.t.of("catalog.kinds", kind), join_html(_truncate_links(view, links_by_kind[kind]))) for kind in order]
    )


def _truncate_links(view: PageView, links: list[Html]) -> list[Html]:
    unique_links = list(dict.fromkeys(links))
    truncation_note = h.div(view.t("catalog.more", n=len(unique_links) - _MAX_PER_KIND), class_="soft small")
    return [*unique_links[:_MAX_PER_KIND], truncation_note] if len(unique_links) > _MAX_PER_KIND else unique_links


def to_display_ref(ref: str) -> Ref:
    """What a person would name: the revision of a thing that has no versions is left out."""
    parsed_ref = Ref.parse(ref)
    return parsed_ref.bare if parsed_ref.version.startswith("r") else parsed_ref


def _render_evidence(view: PageView, ref: Ref) -> Html:
    attestations: tuple[VersionAttestation, ...] = view.here.catalog.evidence(ref)
    t, attest_button = view.t, _render_attest_button(view, ref)
    if not attestations:
        return join_html(h.p(t("catalog.no_evidence"), class_="soft"), attest_button)
    rows = [
        TableRow(
            (
                h.bdi(attestation.kind),
                components.badge(view, "ok" if attestation.passed else "failed"),
                _render_attestation(view, attestation),
                h.bdi(attestation.author),
                view.ago(attestation.at),
            ),
            id=f"e-{attestation.ref.name}",
        )
        for attestation in reversed(attestations[-_MAX_SHOWN:])
    ]
    headers = (t("console.kind"), t("console.state"), t("catalog.found"), t("console.by"), t("console.when"))
    return join_html(components.table(view, headers, rows, t("catalog.evidence")), attest_button)


def _render_attestation(view: PageView, attestation: VersionAttestation) -> Html:
    metric_lines = [h.div(h.bdi(key), " = ", view.number(value)) for key, value in attestation.metrics.items()]
    return join_html(
        [h.div(h.bdi(key), ": ", h.span(value, dir="auto")) for key, value in attestation.facts.items()], metric_lines
    )


def _render_attest_button(view: PageView, ref: Ref) -> Html:
    t = view.t
    fields = (
        FormField("kind", t("catalog.attest_kind"), value="bias", required=True),
        FormField("passed", t("catalog.attest_passed"), "checkbox", "on"),
        FormField("facts", t("catalog.attest_facts"), "textarea", hint="report=…"),
    )
    return components.action_button(
        view, "catalog", "attest", {"name": ref, "passed": False}, t("catalog.attest"), fields
    )


def _render_actions(view: PageView, version: CatalogVersion) -> Html:
    """What can be done to a version; whoever may not sees what it would need."""
    t, ref = view.t, version.ref
    pin_operation = ("unpin", t("catalog.unpin")) if version.pinned else ("pin", t("catalog.pin"))
    tag_fields = (FormField("alias", t("catalog.alias"), required=True), FormField("reason", t("console.reason")))
    message_fields = (FormField("message", t("catalog.message"), "textarea", version.message),)
    held_reasons = sorted(version.label.holds)
    hold_fields = (
        FormField("why", t("catalog.holds"), "select", options=[(reason, reason) for reason in held_reasons]),
    )
    release_button = (
        components.action_button(view, "catalog", "release", {"name": ref}, t("catalog.release"), hold_fields)
        if held_reasons
        else EMPTY
    )
    buttons = (
        components.action_button(view, "catalog", "tag", {"name": ref}, t("catalog.tag"), tag_fields),
        components.action_button(view, "catalog", "annotate", {"name": ref}, t("catalog.annotate"), message_fields),
        components.action_button(view, "catalog", pin_operation[0], {"name": ref}, pin_operation[1]),
        components.action_button(view, "catalog", "inspect", {"name": ref}, t("catalog.inspect"), show=True)
        if ref.kind == "model"
        else None,
        components.action_button(
            view,
            "catalog",
            "copy",
            {"name": ref},
            t("catalog.copy"),
            (FormField("to", t("console.zone"), required=True),),
        ),
        components.action_button(
            view,
            "catalog",
            "hold",
            {"name": ref},
            t("catalog.hold"),
            (FormField("why", t("catalog.hold_why"), required=True),),
        ),
        release_button,
        components.action_button(
            view,
            "catalog",
            "delete",
            {"name": ref},
            t("console.delete"),
            (FormField("reason", t("console.reason"), required=True),),
            danger=True,
            confirm=t("catalog.delete_sure"),
            back=build_resource_url(ref.bare),
        ),
    )
    return components.card(t("console.actions"), h.div(buttons, class_="actions"), id="actions")
