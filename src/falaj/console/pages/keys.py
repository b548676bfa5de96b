"""Keys: the hierarchy with ages, versions and rotations; and secrets, by name and never by value."""

from collections.abc import Sequence
from typing import Any

from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Made, Page, Route, address, href
from falaj.console.parts import (
    Column,
    Field,
    Row,
    action,
    badge,
    card,
    empty,
    facts,
    filters,
    notice,
    pager,
    ref,
    table,
)
from falaj.console.plots import Node, graph
from falaj.console.view import View
from falaj.core.context import HOUSE
from falaj.govern.key_records import KeyView, Rotation

_PAGE = 100
_OLD_DAYS = 365.0
ROTATED = ("tenant", "meta", "secret", "log", "model", "online")
RETIRED = ("tenant", "online")
PURPOSES = ("zone", "tenant", "meta", "secret", "log", "model", "online", "name", "subject")


def keys(view: View) -> Page:
    """Every key of the tenant, what wraps it, how old it is."""
    t, purpose = view.t, view.query("purpose")
    page = view.here.keys.list(purpose=purpose, after=view.query("page"), limit=_PAGE)
    options = [("", t("console.all")), *((one, t.of("keys.purpose", one)) for one in PURPOSES)]
    body = join(
        h.div(_rotate(view), h.a(t("keys.secrets"), href=address("keys/secrets"), class_="button"), class_="actions"),
        facts({t("keys.custody"): h.bdi(page.custody)}),
        filters(view, (Field("purpose", t("keys.for"), "select", options=options),)),
        card(t("keys.hierarchy"), _tree(view, page.keys, page.custody)) if page.keys and not purpose else None,
        _table(view, page.keys) if page.keys else empty(view, t("keys.none"), t("keys.none_hint"), "falaj keys list"),
        pager(view, page.next),
        view.part(lambda: card(t("keys.rotations"), _rotations(view, view.here.keys.status()))),
    )
    return Page(t("keys.title"), body, live=("keys",), scripts=("plots.js",))


def thing(view: View) -> Made:
    """A key or a secret, by its name."""
    return _secret(view) if view.args["ref"].startswith("secret:") else _key(view)


def secrets(view: View) -> Page:
    """Names, versions and references; a value is nowhere on these pages."""
    t = view.t
    page = view.here.secrets.list(project=view.query("project"), after=view.query("page"), limit=_PAGE)
    fields = (Field("secret", t("console.name"), required=True, hint="secret:fraud/db-password"),
              Field("value", t("keys.value"), "password", required=True))  # fmt: skip
    rows = [
        Row((ref(view, one.secret.bare), h.bdi(one.zone), one.current, view.ago(one.made),
             h.code(one.reference, dir="ltr")), id=str(one.secret.bare))
        for one in page.secrets
    ]  # fmt: skip
    columns = (t("console.name"), t("console.zone"), Column(t("console.version"), "n"), t("console.made"),
               t("keys.reference"))  # fmt: skip
    body = join(
        h.div(action(view, "secrets", "put", {}, t("keys.put"), fields, primary=True), class_="actions"),
        filters(view, (Field("project", t("console.project")),)),
        table(view, columns, rows, t("keys.secrets"))
        if rows
        else empty(view, t("keys.no_secrets"), t("keys.no_secrets_hint"), "falaj secrets put secret:fraud/db-password"),
        pager(view, page.next),
    )
    return Page(t("keys.secrets"), body, live=("secrets",))


def tree_of(found: Sequence[KeyView], root: str) -> tuple[list[Node], list[tuple[str, str]]]:
    """The hierarchy as a graph: root, then zones, then the tenant's keys, then what those wrap."""
    nodes, edges = {"root": Node("root", root)}, list[tuple[str, str]]()
    for one in found:
        zone, tenant = f"zone {one.zone}", f"tenant.{one.zone}"
        nodes.setdefault(zone, Node(zone, one.zone))
        edges.append(("root", zone))
        name = one.key.name
        state = "revoked" if one.destroyed else "active"
        nodes[name] = Node(name, name, f"v{one.current}", state, href(one.key.bare))
        if name != zone:
            edges.append((zone if one.under == "zone" else "root" if one.under == "root" else tenant, name))
    return list(nodes.values()), [edge for edge in dict.fromkeys(edges) if edge[0] in nodes]


def _key(view: View) -> Page:
    t = view.t
    found: KeyView = view.here.keys.show(view.args["ref"])
    retire = found.purpose in RETIRED and len(found.versions) > 1
    scope = {"scope": found.purpose, "zone": found.zone}
    sure = t("keys.retire_online_sure") if found.purpose == "online" else t("keys.retire_sure")
    body = join(
        h.p(badge(view, "revoked" if found.destroyed else "active"), " ", t.of("keys.purpose", found.purpose)),
        notice("warn", t("keys.old")) if found.age_days > _OLD_DAYS else None,
        facts([
            (t("console.zone"), h.bdi(found.zone)), (t("keys.under"), t.of("keys.under", found.under)),
            (t("keys.current"), found.current), (t("console.versions"), h.bdi(", ".join(map(str, found.versions)))),
            (t("console.made"), view.when(found.made)), (t("keys.age"), _age(view, found)),
        ]),
        h.div(
            action(view, "keys", "rotate", scope, t("keys.rotate"), confirm=t("keys.rotate_sure"), primary=True)
            if found.purpose in ROTATED else None,
            action(view, "keys", "retire", scope, t("keys.retire"), confirm=sure, danger=True)
            if retire else None,
            class_="actions",
        ),
        h.p(h.a(t("keys.in_log"), href=address("audit", {"about": str(found.key.bare)}))),
    )  # fmt: skip
    return Page(h.bdi(found.key.name), body, live=("keys",))


def _secret(view: View) -> Page:
    t = view.t
    found = view.here.secrets.show(view.args["ref"])
    bare = {"secret": found.secret.bare}
    value = Field("value", t("keys.value"), "password", hint=t("keys.value_hint"))
    grantee = Field("to", t("keys.grantee"), required=True, hint="person:amal, role:ml-engineer, project:fraud")
    body = join(
        notice("plain", t("keys.no_values")),
        facts([
            (t("console.zone"), h.bdi(found.zone)), (t("keys.current"), found.current),
            (t("console.versions"), h.bdi(", ".join(map(str, found.versions)))),
            (t("console.made"), view.when(found.made)), (t("keys.reference"), h.code(found.reference, dir="ltr")),
            (t("keys.granted"), h.bdi(", ".join(found.use) or "-")),
        ]),
        h.div(
            action(view, "secrets", "rotate", bare, t("keys.new_value"), (value,)),
            action(view, "secrets", "grant", bare, t("keys.grant"), (grantee,)),
            action(view, "secrets", "withdraw", bare, t("keys.withdraw"), (grantee,)) if found.use else None,
            action(view, "secrets", "delete", bare, t("console.delete"), danger=True, confirm=t("keys.delete_sure"),
                   back=address("keys/secrets")),
            class_="actions",
        ),
        h.p(h.a(t("keys.in_log"), href=address("audit", {"about": str(found.secret.bare)}))),
    )  # fmt: skip
    return Page(h.bdi(found.secret.name), body, ((t("keys.secrets"), address("keys/secrets")),), live=("secrets",))


def _tree(view: View, found: Sequence[KeyView], custody: str) -> Html:
    shown = [one for one in found if one.purpose != "subject"]
    return graph(view, *tree_of(shown, f"{view.t.of('keys.under', 'root')} ({custody})"), title=view.t("keys.tree"))


def _table(view: View, found: Sequence[KeyView]) -> Html:
    t = view.t
    columns: tuple[Any, ...] = (
        t("console.name"), t("keys.for"), t("console.zone"), t("keys.under"), Column(t("keys.current"), "n"),
        Column(t("console.versions"), "n"), Column(t("keys.age"), "n"), t("console.state"),
    )  # fmt: skip
    rows = [
        Row((ref(view, one.key.bare, short=True), t.of("keys.purpose", one.purpose), h.bdi(one.zone),
             t.of("keys.under", one.under), one.current, len(one.versions), _age(view, one),
             badge(view, "revoked" if one.destroyed else "active")), id=str(one.key.bare))
        for one in found
    ]  # fmt: skip
    return table(view, columns, rows, t("keys.title"))


def _age(view: View, one: KeyView) -> Html:
    return view.t("keys.days", n=int(one.age_days))


def _rotate(view: View) -> Html:
    t = view.t
    scopes = ("root", "zone", *ROTATED) if view.actor.tenant == HOUSE else ROTATED
    fields = (
        Field("scope", t("keys.which"), "select", "tenant", [(one, t.of("keys.purpose", one)) for one in scopes]),
        Field("zone", t("console.zone"), hint=t("keys.zone_hint")),
    )
    return action(view, "keys", "rotate", {}, t("keys.rotate"), fields, primary=True, confirm=t("keys.rotate_sure"))


def _rotations(view: View, found: Sequence[Rotation]) -> Html:
    t = view.t
    if not found:
        return h.p(t("keys.no_rotations"), class_="soft")
    columns = (t("keys.which"), t("console.zone"), Column(t("console.version"), "n"), t("keys.phase"),
               Column(t("keys.moved"), "n"), t("console.since"), t("console.ended"))  # fmt: skip
    rows = [
        (t.of("keys.purpose", one.scope), h.bdi(one.zone), one.version, t.of("keys.phase", one.phase),
         view.number(one.moved), view.ago(one.since), view.ago(one.finished) if one.finished else EMPTY)
        for one in found
    ]  # fmt: skip
    return table(view, columns, rows, t("keys.rotations"))


ROUTES: tuple[Route, ...] = (
    Route("keys", keys, ("keys", "keys?purpose=tenant")),
    Route("keys/secrets", secrets, ("keys/secrets",)),
    Route("keys/<ref>", thing, ("keys/key:keys/tenant.ae-dubai", "keys/secret:fraud/warehouse")),
)
