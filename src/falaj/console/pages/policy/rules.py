"""Rules: guardrails, roles and the tenant's own, each as it is written; and the table of roles."""

from collections.abc import Sequence

from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address
from falaj.console.parts import Field, Row, action, card, empty, facts, table, tabs
from falaj.console.view import View
from falaj.govern.people_records import PolicyText, RoleRow

LAYERS = ("tenant", "guardrail", "role")
EXAMPLE = 'forbid (principal, action in Action::"read", resource) when { resource.classification >= 3 };'


def policy(view: View) -> Page:
    """Every rule that binds the reader's tenant, layer by layer."""
    t, layer = view.t, view.query("layer", LAYERS[0])
    found = [one for one in view.here.policy.list() if one.layer == layer]
    ways = (
        h.a(t("policy.explain"), href=address("policy/explain"), class_="button primary"),
        h.a(t("policy.roles"), href=address("policy/roles"), class_="button"),
    )
    body = join(
        h.div(ways, _add(view), class_="actions"),
        tabs(view, [(one, t.of("policy.layer", one)) for one in LAYERS], "layer"),
        h.p(t.of("policy.layer_long", layer), class_="soft"),
        _table(view, found)
        if found
        else empty(
            view, t("policy.none"), t("policy.none_hint"), f"falaj policy add no-secret-reads --text '{EXAMPLE}'"
        ),
    )
    return Page(t("policy.title"), body, live=("policy",))


def rule(view: View) -> Page:
    """One rule as it is written."""
    t = view.t
    found: PolicyText = view.here.policy.show(view.args["ref"])
    own = found.layer == "tenant"
    name = found.name.removeprefix("tenant-")
    remove = action(view, "policy", "remove", {"name": name}, t("policy.remove"), danger=True,
                    confirm=t("policy.remove_sure"), back=address("policy")) if own else None  # fmt: skip
    body = join(
        h.p(_effect(view, found.effect), " ", h.span(found.says, dir="auto")),
        facts({t("policy.layer"): t.of("policy.layer", found.layer)}),
        card(t("policy.text"), h.pre(found.text, tabindex="0")),
        h.div(remove, class_="actions") if own else None,
        h.p(h.a(t("policy.decided"), href=address("audit", {"verb": "guard.deny"}))),
    )
    return Page(h.bdi(found.name), body, live=("policy",))


def roles(view: View) -> Page:
    """Who may do what to which family of things: one table, from which the permits are made."""
    t = view.t
    found: Sequence[RoleRow] = view.here.policy.roles()
    families = list(found[0].allows) if found else []
    rows = [
        Row(
            (h.bdi(one.role, class_="nowrap"), *(_groups(view, one.allows[family]) for family in families)), id=one.role
        )
        for one in found
    ]
    heads = (t("policy.role"), *(t.of("policy.family", family) for family in families))
    legend = facts([(t.of("policy.group", one), t.of("policy.means", one)) for one in _every(found)])
    body = join(table(view, heads, rows, t("policy.roles")), card(t("policy.legend"), legend))
    return Page(t("policy.roles"), body, wide=True)


def _every(found: Sequence[RoleRow]) -> list[str]:
    """The groups that some role has, in the order in which they appear."""
    return list(dict.fromkeys(group for one in found for groups in one.allows.values() for group in groups.split()))


def _groups(view: View, groups: str) -> Html:
    return join([h.span(view.t.of("policy.group", one), class_="tag") for one in groups.split()])


def _effect(view: View, effect: str) -> Html:
    kind = "good" if effect == "permit" else "bad"
    return h.span(view.t.of("policy.effect", effect), class_=f"badge {kind}")


def _table(view: View, found: Sequence[PolicyText]) -> Html:
    t = view.t
    rows = [
        Row((h.a(h.bdi(one.name), href=address(f"policy/policy:policies/{one.name}"), class_="nowrap"),
             _effect(view, one.effect), h.span(one.says, dir="auto")), id=one.name)
        for one in found
    ]  # fmt: skip
    return table(view, (t("policy.rule"), t("policy.effect"), t("policy.says")), rows, t("policy.title"))


def _add(view: View) -> Html:
    t = view.t
    fields = (
        Field("name", t("console.name"), required=True, hint=t("policy.name_hint")),
        Field("text", t("policy.text"), "textarea", EXAMPLE, required=True),
    )
    return action(view, "policy", "add", {}, t("policy.add"), fields, confirm=t("policy.narrow"))
