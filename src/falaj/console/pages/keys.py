"""Keys: the hierarchy with ages, versions and rotations; and secrets, by name and never by value."""

from collections.abc import Sequence
from typing import Any

from falaj.console.components import (
    ColumnHeader,
    FormField,
    TableRow,
    action_button,
    badge,
    card,
    empty_state,
    fact_list,
    filter_form,
    notice,
    pager,
    ref_link,
    table,
)
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, PageRoute, RouteResult, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.plots import GraphNode, node_graph
from falaj.core.context import SYSTEM_TENANT
from falaj.govern.key_records import KeyView, Rotation

_PAGE_SIZE = 100
_MAX_KEY_AGE_DAYS = 365.0
ROTATED_PURPOSES = ("tenant", "meta", "secret", "log", "model", "online")
RETIRABLE_PURPOSES = ("tenant", "online")
KEY_PURPOSES = ("zone", "tenant", "meta", "secret", "log", "model", "online", "name", "subject")


def render_keys_page(view: PageView) -> Page:
    """Every key of the tenant, what wraps it, how old it is."""
    t, purpose = view.t, view.query("purpose")
    page = view.here.keys.list(purpose=purpose, after=view.query("page"), limit=_PAGE_SIZE)
    options = [
        ("", t("console.all")),
        *((purpose_option, t.of("keys.purpose", purpose_option)) for purpose_option in KEY_PURPOSES),
    ]
    body = join_html(
        h.div(
            _render_rotate_button(view),
            h.a(t("keys.secrets"), href=build_url("keys/secrets"), class_="button"),
            class_="actions",
        ),
        fact_list({t("keys.custody"): h.bdi(page.custody)}),
        filter_form(view, (FormField("purpose", t("keys.for"), "select", options=options),)),
        card(t("keys.hierarchy"), _render_tree(view, page.keys, page.custody)) if page.keys and not purpose else None,
        _render_table(view, page.keys)
        if page.keys
        else empty_state(view, t("keys.none"), t("keys.none_hint"), "falaj keys list"),
        pager(view, page.next),
        view.part(lambda: card(t("keys.rotations"), _render_rotations(view, view.here.keys.status()))),
    )
    return Page(t("keys.title"), body, live=("keys",), scripts=("plots.js",))


def render_resource_page(view: PageView) -> RouteResult:
    """A key or a secret, by its name."""
    return _render_secret_page(view) if view.args["ref"].startswith("secret:") else _render_key_page(view)


def render_secrets_page(view: PageView) -> Page:
    """Names, versions and references; a value is nowhere on these pages."""
    t = view.t
    page = view.here.secrets.list(project=view.query("project"), after=view.query("page"), limit=_PAGE_SIZE)
    fields = (
        FormField("secret", t("console.name"), required=True, hint="secret:fraud/db-password"),
        FormField("value", t("keys.value"), "password", required=True),
    )
    rows = [
        TableRow(
            (
                ref_link(view, secret_view.secret.bare),
                h.bdi(secret_view.zone),
                secret_view.current,
                view.ago(secret_view.made),
                h.code(secret_view.reference, dir="ltr"),
            ),
            id=str(secret_view.secret.bare),
        )
        for secret_view in page.secrets
    ]
    columns = (
        t("console.name"),
        t("console.zone"),
        ColumnHeader(t("console.version"), "n"),
        t("console.made"),
        t("keys.reference"),
    )
    body = join_html(
        h.div(action_button(view, "secrets", "put", {}, t("keys.put"), fields, primary=True), class_="actions"),
        filter_form(view, (FormField("project", t("console.project")),)),
        table(view, columns, rows, t("keys.secrets"))
        if rows
        else empty_state(
            view, t("keys.no_secrets"), t("keys.no_secrets_hint"), "falaj secrets put secret:fraud/db-password"
        ),
        pager(view, page.next),
    )
    return Page(t("keys.secrets"), body, live=("secrets",))


def build_key_tree(key_views: Sequence[KeyView], root_label: str) -> tuple[list[GraphNode], list[tuple[str, str]]]:
    """The hierarchy as a graph: root, then zones, then the tenant's keys, then what those wrap."""
    nodes, edges = {"root": GraphNode("root", root_label)}, list[tuple[str, str]]()
    for key_view in key_views:
        zone, tenant = f"zone {key_view.zone}", f"tenant.{key_view.zone}"
        nodes.setdefault(zone, GraphNode(zone, key_view.zone))
        edges.append(("root", zone))
        name = key_view.key.name
        state = "revoked" if key_view.destroyed else "active"
        nodes[name] = GraphNode(name, name, f"v{key_view.current}", state, build_resource_url(key_view.key.bare))
        if name != zone:
            edges.append((zone if key_view.under == "zone" else "root" if key_view.under == "root" else tenant, name))
    return list(nodes.values()), [edge for edge in dict.fromkeys(edges) if edge[0] in nodes]


def _render_key_page(view: PageView) -> Page:
    t = view.t
    key_view: KeyView = view.here.keys.show(view.args["ref"])
    can_retire = key_view.purpose in RETIRABLE_PURPOSES and len(key_view.versions) > 1
    scope = {"scope": key_view.purpose, "zone": key_view.zone}
    confirmation = t("keys.retire_online_sure") if key_view.purpose == "online" else t("keys.retire_sure")
    body = join_html(
        h.p(badge(view, "revoked" if key_view.destroyed else "active"), " ", t.of("keys.purpose", key_view.purpose)),
        notice("warn", t("keys.old")) if key_view.age_days > _MAX_KEY_AGE_DAYS else None,
        fact_list(
            [
                (t("console.zone"), h.bdi(key_view.zone)),
                (t("keys.under"), t.of("keys.under", key_view.under)),
                (t("keys.current"), key_view.current),
                (t("console.versions"), h.bdi(", ".join(map(str, key_view.versions)))),
                (t("console.made"), view.when(key_view.made)),
                (t("keys.age"), _format_age(view, key_view)),
            ]
        ),
        h.div(
            action_button(view, "keys", "rotate", scope, t("keys.rotate"), confirm=t("keys.rotate_sure"), primary=True)
            if key_view.purpose in ROTATED_PURPOSES
            else None,
            action_button(view, "keys", "retire", scope, t("keys.retire"), confirm=confirmation, danger=True)
            if can_retire
            else None,
            class_="actions",
        ),
        h.p(h.a(t("keys.in_log"), href=build_url("audit", {"about": str(key_view.key.bare)}))),
    )
    return Page(h.bdi(key_view.key.name), body, live=("keys",))


def _render_secret_page(view: PageView) -> Page:
    t = view.t
    secret_view = view.here.secrets.show(view.args["ref"])
    secret_argument = {"secret": secret_view.secret.bare}
    value_field = FormField("value", t("keys.value"), "password", hint=t("keys.value_hint"))
    grantee_field = FormField(
        "to", t("keys.grantee"), required=True, hint="person:amal, role:ml-engineer, project:fraud"
    )
    body = join_html(
        notice("plain", t("keys.no_values")),
        fact_list(
            [
                (t("console.zone"), h.bdi(secret_view.zone)),
                (t("keys.current"), secret_view.current),
                (t("console.versions"), h.bdi(", ".join(map(str, secret_view.versions)))),
                (t("console.made"), view.when(secret_view.made)),
                (t("keys.reference"), h.code(secret_view.reference, dir="ltr")),
                (t("keys.granted"), h.bdi(", ".join(secret_view.use) or "-")),
            ]
        ),
        h.div(
            action_button(view, "secrets", "rotate", secret_argument, t("keys.new_value"), (value_field,)),
            action_button(view, "secrets", "grant", secret_argument, t("keys.grant"), (grantee_field,)),
            action_button(view, "secrets", "withdraw", secret_argument, t("keys.withdraw"), (grantee_field,))
            if secret_view.use
            else None,
            action_button(
                view,
                "secrets",
                "delete",
                secret_argument,
                t("console.delete"),
                danger=True,
                confirm=t("keys.delete_sure"),
                back=build_url("keys/secrets"),
            ),
            class_="actions",
        ),
        h.p(h.a(t("keys.in_log"), href=build_url("audit", {"about": str(secret_view.secret.bare)}))),
    )
    return Page(
        h.bdi(secret_view.secret.name), body, ((t("keys.secrets"), build_url("keys/secrets")),), live=("secrets",)
    )


def _render_tree(view: PageView, key_views: Sequence[KeyView], custody: str) -> Html:
    shown_keys = [key_view for key_view in key_views if key_view.purpose != "subject"]
    return node_graph(
        view, *build_key_tree(shown_keys, f"{view.t.of('keys.under', 'root')} ({custody})"), title=view.t("keys.tree")
    )


def _render_table(view: PageView, key_views: Sequence[KeyView]) -> Html:
    t = view.t
    columns: tuple[Any, ...] = (
        t("console.name"),
        t("keys.for"),
        t("console.zone"),
        t("keys.under"),
        ColumnHeader(t("keys.current"), "n"),
        ColumnHeader(t("console.versions"), "n"),
        ColumnHeader(t("keys.age"), "n"),
        t("console.state"),
    )
    rows = [
        TableRow(
            (
                ref_link(view, key_view.key.bare, short=True),
                t.of("keys.purpose", key_view.purpose),
                h.bdi(key_view.zone),
                t.of("keys.under", key_view.under),
                key_view.current,
                len(key_view.versions),
                _format_age(view, key_view),
                badge(view, "revoked" if key_view.destroyed else "active"),
            ),
            id=str(key_view.key.bare),
        )
        for key_view in key_views
    ]
    return table(view, columns, rows, t("keys.title"))


def _format_age(view: PageView, key_view: KeyView) -> Html:
    return view.t("keys.days", n=int(key_view.age_days))


def _render_rotate_button(view: PageView) -> Html:
    t = view.t
    scopes = ("root", "zone", *ROTATED_PURPOSES) if view.actor.tenant == SYSTEM_TENANT else ROTATED_PURPOSES
    fields = (
        FormField(
            "scope", t("keys.which"), "select", "tenant", [(scope, t.of("keys.purpose", scope)) for scope in scopes]
        ),
        FormField("zone", t("console.zone"), hint=t("keys.zone_hint")),
    )
    return action_button(
        view, "keys", "rotate", {}, t("keys.rotate"), fields, primary=True, confirm=t("keys.rotate_sure")
    )


def _render_rotations(view: PageView, rotations: Sequence[Rotation]) -> Html:
    t = view.t
    if not rotations:
        return h.p(t("keys.no_rotations"), class_="soft")
    columns = (
        t("keys.which"),
        t("console.zone"),
        ColumnHeader(t("console.version"), "n"),
        t("keys.phase"),
        ColumnHeader(t("keys.moved"), "n"),
        t("console.since"),
        t("console.ended"),
    )
    rows = [
        (
            t.of("keys.purpose", rotation.scope),
            h.bdi(rotation.zone),
            rotation.version,
            t.of("keys.phase", rotation.phase),
            view.number(rotation.moved),
            view.ago(rotation.since),
            view.ago(rotation.finished) if rotation.finished else EMPTY,
        )
        for rotation in rotations
    ]
    return table(view, columns, rows, t("keys.rotations"))


ROUTES: tuple[PageRoute, ...] = (
    PageRoute("keys", render_keys_page, ("keys", "keys?purpose=tenant")),
    PageRoute("keys/secrets", render_secrets_page, ("keys/secrets",)),
    PageRoute("keys/<ref>", render_resource_page, ("keys/key:keys/tenant.ae-dubai", "keys/secret:fraud/warehouse")),
)
