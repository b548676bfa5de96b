"""Zones on a map, and one of them: whose law, what it may hold, who runs it, where its keys are."""

from collections.abc import Sequence

from falaj.console.components import FormField, TableRow, action_button, badge, card, empty_state, fact_list, table, tag
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.zones.grant_pages import render_grant_table
from falaj.console.plots import MapPlace, world_map
from falaj.console.plots.region_coordinates import find_coordinates
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Denied
from falaj.core.label import CLASS_NAMES
from falaj.govern.grants import parse_outside_target
from falaj.govern.records import GrantState, LegalZone

_GRANT_LIMIT = 200


def render_zones_page(view: PageView) -> Page:
    """Every zone, where it is, and the ways that grants open between them."""
    t, zones = view.t, view.here.zones.list()
    links = (
        h.a(t("zones.may_it_go"), href=build_url("zones/check"), class_="button primary"),
        h.a(t("zones.grants"), href=build_url("zones/grants"), class_="button"),
        h.a(t("zones.regimes"), href=build_url("zones/regimes"), class_="button"),
    )
    body = join_html(
        h.div(links, _render_add_button(view), class_="actions"),
        card(t("zones.map"), _render_map(view, zones), h.p(t("zones.map_hint"), class_="soft")),
        _render_table(view, zones),
    )
    return Page(t("zones.title"), body, live=("zones", "approvals"), scripts=("plots.js",))


def render_zone_page(view: PageView) -> Page:
    """One zone."""
    t, zone = view.t, view.here.zones.show(view.args["ref"])
    zone_grants = [
        grant_state for grant_state in _list_grants(view) if zone.id in (grant_state.grant.src, grant_state.grant.dst)
    ]
    body = join_html(
        h.p(badge(view, _get_zone_state(zone))),
        card(
            t("console.details"),
            fact_list(
                [
                    (t("zones.jurisdiction"), h.bdi(zone.jurisdiction)),
                    (t("zones.region"), h.bdi(zone.region)),
                    (t("zones.max_class"), _render_max_class(view, zone.max_class)),
                    (t("zones.egress_class"), _render_max_class(view, zone.egress_class)),
                    (t("zones.regimes"), _render_regimes(zone)),
                    (t("zones.operator"), _render_operator(zone)),
                    (t("zones.custody"), _render_custody(view, zone)),
                    (t("zones.backup"), h.bdi(zone.backup_zone)),
                    (t("zones.store"), h.code(zone.store, dir="ltr") if zone.store else t("zones.store_hidden")),
                    (t("zones.executors"), h.bdi(", ".join(zone.executors))),
                    (t("zones.valid_until"), view.when(zone.valid_to) if zone.valid_to else t("zones.no_end")),
                ]
            ),
        ),
        _render_zone_actions(view, zone),
        card(
            t("zones.ways"),
            render_grant_table(view, zone_grants) if zone_grants else h.p(t("zones.no_ways"), class_="soft"),
        ),
    )
    return Page(h.bdi(zone.id), body, live=("zones", "approvals"))


def make_map_places(zones: Sequence[LegalZone], grants: Sequence[GrantState]) -> list[MapPlace]:
    """A dot for every zone, and for every country outside that a grant leads to, where its place is known."""
    map_places = []
    for item in zones:
        coordinates = find_coordinates(item.region) or find_coordinates(item.jurisdiction)
        if coordinates is not None:
            link = build_url(f"zones/zone:{SYSTEM_TENANT}/{item.id}")
            map_places.append(
                MapPlace(item.id, item.id, *coordinates, note=item.jurisdiction, state=_get_zone_state(item), link=link)
            )
    foreign_countries = {item.grant.dst for item in grants if parse_outside_target(item.grant.dst)}
    located_countries = [(dst, find_coordinates(parse_outside_target(dst))) for dst in sorted(foreign_countries)]
    return map_places + [
        MapPlace(dst, parse_outside_target(dst), *coordinates, link=build_url("zones/grants"))
        for dst, coordinates in located_countries
        if coordinates
    ]


def _render_map(view: PageView, zones: Sequence[LegalZone]) -> Html:
    grants = _list_grants(view)
    live_grants = [grant_state for grant_state in grants if grant_state.state in ("active", "early", "waiting")]
    flows = list(
        {(grant_state.grant.src, grant_state.grant.dst, grant_state.state): None for grant_state in live_grants}
    )
    return world_map(view, make_map_places(zones, live_grants), flows, title=view.t("zones.map_title"))


def _list_grants(view: PageView) -> Sequence[GrantState]:
    """Those the reader may see; a map without its ways is still a map."""
    try:
        grants: Sequence[GrantState] = view.here.zones.grants(limit=_GRANT_LIMIT)
    except Denied:
        return ()
    return grants


def _render_table(view: PageView, zones: Sequence[LegalZone]) -> Html:
    t = view.t
    if not zones:
        return empty_state(
            view, t("zones.none"), t("zones.none_hint"), "falaj zones add ae-dubai AE-DU AE --max-class 3"
        )
    columns = (
        t("console.zone"),
        t("zones.jurisdiction"),
        t("zones.region"),
        t("zones.max_class"),
        t("zones.regimes"),
        t("zones.custody"),
        t("console.state"),
    )
    rows = [
        TableRow(
            (
                h.a(h.bdi(zone.id), href=build_url(f"zones/zone:{SYSTEM_TENANT}/{zone.id}"), class_="nowrap"),
                h.bdi(zone.jurisdiction),
                h.bdi(zone.region),
                _render_max_class(view, zone.max_class),
                _render_regimes(zone),
                _render_custody(view, zone),
                badge(view, _get_zone_state(zone)),
            ),
            id=f"zone-{zone.id}",
        )
        for zone in zones
    ]
    return table(view, columns, rows, t("zones.title"))


def _render_add_button(view: PageView) -> Html:
    if view.actor.tenant != SYSTEM_TENANT:
        return EMPTY
    t = view.t
    classes = [(str(n), t.of("zones.class", name)) for n, name in enumerate(CLASS_NAMES)]
    fields = (
        FormField("id", t("console.name"), required=True),
        FormField("region", t("zones.region"), required=True),
        FormField("jurisdiction", t("zones.jurisdiction"), required=True),
        FormField("regimes", t("zones.regimes")),
        FormField("max_class", t("zones.max_class"), "select", options=classes),
        FormField("store", t("zones.store")),
    )
    return action_button(view, "zones", "add", {}, t("zones.add"), fields)


def _render_zone_actions(view: PageView, zone: LegalZone) -> Html:
    """Zones belong to the house: nobody else is offered to change them."""
    if view.actor.tenant != SYSTEM_TENANT:
        return EMPTY
    t = view.t
    changes_field = FormField("more", t("zones.changes"), "textarea", required=True, hint=t("zones.changes_hint"))
    return h.div(
        action_button(view, "zones", "change", {"zone": zone.id}, t("zones.change"), (changes_field,)),
        action_button(
            view, "zones", "retire", {"zone": zone.id}, t("zones.retire"), danger=True, confirm=t("zones.retire_sure")
        )
        if zone.active
        else None,
        class_="actions",
    )


def _get_zone_state(zone: LegalZone) -> str:
    return "active" if zone.active else "retired"


def _render_max_class(view: PageView, level: int) -> Html:
    name = CLASS_NAMES[level] if 0 <= level < len(CLASS_NAMES) else str(level)
    return h.span(view.t.of("zones.class", name), " ", h.small(f"({level})", class_="soft"))


def _render_regimes(zone: LegalZone) -> Html:
    return join_html(
        [h.a(tag(regime), href=build_url(f"zones/regimes/{regime}"), class_="ref") for regime in zone.regimes]
    )


def _render_operator(zone: LegalZone) -> Html:
    operator = zone.operator
    return (
        h.bdi(f"{operator.name} ({operator.domicile})" if operator.domicile else operator.name)
        if operator.name
        else EMPTY
    )


def _render_custody(view: PageView, zone: LegalZone) -> Html:
    key_place = h.bdi(f" ({zone.key_jurisdiction})") if zone.key_jurisdiction else None
    return join_html(view.t.of("zones.custody", zone.custody), key_place)
