"""Zones on a map, and one of them: whose law, what it may hold, who runs it, where its keys are."""

from collections.abc import Sequence

from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address
from falaj.console.pages.zones.grants import grant_table
from falaj.console.parts import Field, Row, action, badge, card, empty, facts, table, tag
from falaj.console.plots import Place, world
from falaj.console.plots.places import place_of
from falaj.console.view import View
from falaj.core.context import HOUSE
from falaj.core.errors import Denied
from falaj.core.label import CLASS_NAMES
from falaj.govern.grants import outside_of
from falaj.govern.records import GrantState, Zone

_DRAWN = 200


def zones(view: View) -> Page:
    """Every zone, where it is, and the ways that grants open between them."""
    t, found = view.t, view.here.zones.list()
    ways = (
        h.a(t("zones.may_it_go"), href=address("zones/check"), class_="button primary"),
        h.a(t("zones.grants"), href=address("zones/grants"), class_="button"),
        h.a(t("zones.regimes"), href=address("zones/regimes"), class_="button"),
    )
    body = join(
        h.div(ways, _add(view), class_="actions"),
        card(t("zones.map"), _map(view, found), h.p(t("zones.map_hint"), class_="soft")),
        _table(view, found),
    )
    return Page(t("zones.title"), body, live=("zones", "approvals"), scripts=("plots.js",))


def zone(view: View) -> Page:
    """One zone."""
    t, found = view.t, view.here.zones.show(view.args["ref"])
    ways = [one for one in _grants(view) if found.id in (one.grant.src, one.grant.dst)]
    body = join(
        h.p(badge(view, _state(found))),
        card(t("console.details"), facts([
            (t("zones.jurisdiction"), h.bdi(found.jurisdiction)), (t("zones.region"), h.bdi(found.region)),
            (t("zones.max_class"), _class(view, found.max_class)),
            (t("zones.egress_class"), _class(view, found.egress_class)),
            (t("zones.regimes"), _regimes(found)), (t("zones.operator"), _operator(found)),
            (t("zones.custody"), _custody(view, found)), (t("zones.backup"), h.bdi(found.backup_zone)),
            (t("zones.store"), h.code(found.store, dir="ltr") if found.store else t("zones.store_hidden")),
            (t("zones.executors"), h.bdi(", ".join(found.executors))),
            (t("zones.valid_until"), view.when(found.valid_to) if found.valid_to else t("zones.no_end")),
        ])),
        _govern(view, found),
        card(t("zones.ways"), grant_table(view, ways) if ways else h.p(t("zones.no_ways"), class_="soft")),
    )  # fmt: skip
    return Page(h.bdi(found.id), body, live=("zones", "approvals"))


def places_of(found: Sequence[Zone], grants: Sequence[GrantState]) -> list[Place]:
    """A dot for every zone, and for every country outside that a grant leads to, where its place is known."""
    made = []
    for one in found:
        at = place_of(one.region) or place_of(one.jurisdiction)
        if at is not None:
            link = address(f"zones/zone:{HOUSE}/{one.id}")
            made.append(Place(one.id, one.id, *at, note=one.jurisdiction, state=_state(one), link=link))
    abroad = {one.grant.dst for one in grants if outside_of(one.grant.dst)}
    known = [(dst, place_of(outside_of(dst))) for dst in sorted(abroad)]
    return made + [Place(dst, outside_of(dst), *at, link=address("zones/grants")) for dst, at in known if at]


def _map(view: View, found: Sequence[Zone]) -> Html:
    grants = _grants(view)
    live = [one for one in grants if one.state in ("active", "early", "waiting")]
    flows = list({(one.grant.src, one.grant.dst, one.state): None for one in live})
    return world(view, places_of(found, live), flows, title=view.t("zones.map_title"))


def _grants(view: View) -> Sequence[GrantState]:
    """Those the reader may see; a map without its ways is still a map."""
    try:
        found: Sequence[GrantState] = view.here.zones.grants(limit=_DRAWN)
    except Denied:
        return ()
    return found


def _table(view: View, found: Sequence[Zone]) -> Html:
    t = view.t
    if not found:
        return empty(view, t("zones.none"), t("zones.none_hint"), "falaj zones add ae-dubai AE-DU AE --max-class 3")
    columns = (t("console.zone"), t("zones.jurisdiction"), t("zones.region"),
               t("zones.max_class"), t("zones.regimes"), t("zones.custody"),
               t("console.state"))  # fmt: skip
    rows = [
        Row((
            h.a(h.bdi(one.id), href=address(f"zones/zone:{HOUSE}/{one.id}"), class_="nowrap"), h.bdi(one.jurisdiction),
            h.bdi(one.region), _class(view, one.max_class), _regimes(one), _custody(view, one),
            badge(view, _state(one)),
        ), id=f"zone-{one.id}")
        for one in found
    ]  # fmt: skip
    return table(view, columns, rows, t("zones.title"))


def _add(view: View) -> Html:
    if view.actor.tenant != HOUSE:
        return EMPTY
    t = view.t
    classes = [(str(n), t.of("zones.class", name)) for n, name in enumerate(CLASS_NAMES)]
    fields = (
        Field("id", t("console.name"), required=True), Field("region", t("zones.region"), required=True),
        Field("jurisdiction", t("zones.jurisdiction"), required=True), Field("regimes", t("zones.regimes")),
        Field("max_class", t("zones.max_class"), "select", options=classes), Field("store", t("zones.store")),
    )  # fmt: skip
    return action(view, "zones", "add", {}, t("zones.add"), fields)


def _govern(view: View, found: Zone) -> Html:
    """Zones belong to the house: nobody else is offered to change them."""
    if view.actor.tenant != HOUSE:
        return EMPTY
    t = view.t
    more = Field("more", t("zones.changes"), "textarea", required=True, hint=t("zones.changes_hint"))
    return h.div(
        action(view, "zones", "change", {"zone": found.id}, t("zones.change"), (more,)),
        action(view, "zones", "retire", {"zone": found.id}, t("zones.retire"), danger=True,
               confirm=t("zones.retire_sure")) if found.active else None,
        class_="actions",
    )  # fmt: skip


def _state(found: Zone) -> str:
    return "active" if found.active else "retired"


def _class(view: View, level: int) -> Html:
    name = CLASS_NAMES[level] if 0 <= level < len(CLASS_NAMES) else str(level)
    return h.span(view.t.of("zones.class", name), " ", h.small(f"({level})", class_="soft"))


def _regimes(found: Zone) -> Html:
    return join([h.a(tag(one), href=address(f"zones/regimes/{one}"), class_="ref") for one in found.regimes])


def _operator(found: Zone) -> Html:
    who = found.operator
    return h.bdi(f"{who.name} ({who.domicile})" if who.domicile else who.name) if who.name else EMPTY


def _custody(view: View, found: Zone) -> Html:
    where = h.bdi(f" ({found.key_jurisdiction})") if found.key_jurisdiction else None
    return join(view.t.of("zones.custody", found.custody), where)
