"""Rules: guardrails, roles and the tenant's own, each as it is written; and the table of roles."""

from collections.abc import Sequence

from falaj.console.components import FormField, TableRow, action_button, card, empty_state, fact_list, table, tabs
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.govern.people_records import PolicyText, RoleRow

POLICY_LAYERS = ("tenant", "guardrail", "role")
EXAMPLE_RULE = 'forbid (principal, action in Action::"read", resource) when { resource.classification >= 3 };'


def render_policy_page(view: PageView) -> Page:
    """Every rule that binds the reader's tenant, layer by layer."""
    t, layer = view.t, view.query("layer", POLICY_LAYERS[0])
    policy_rules = [item for item in view.here.policy.list() if item.layer == layer]
    links = (
        h.a(t("policy.explain"), href=build_url("policy/explain"), class_="button primary"),
        h.a(t("policy.roles"), href=build_url("policy/roles"), class_="button"),
    )
    body = join_html(
        h.div(links, _render_add_button(view), class_="actions"),
        tabs(view, [(item, t.of("policy.layer", item)) for item in POLICY_LAYERS], "layer"),
        h.p(t.of("policy.layer_long", layer), class_="soft"),
        _render_table(view, policy_rules)
        if policy_rules
        else empty_state(
            view, t("policy.none"), t("policy.none_hint"), f"falaj policy add no-secret-reads --text '{EXAMPLE_RULE}'"
        ),
    )
    return Page(t("policy.title"), body, live=("policy",))


def render_rule_page(view: PageView) -> Page:
    """One rule as it is written."""
    t = view.t
    policy_rule: PolicyText = view.here.policy.show(view.args["ref"])
    is_own = policy_rule.layer == "tenant"
    name = policy_rule.name.removeprefix("tenant-")
    remove_button = (
        action_button(
            view,
            "policy",
            "remove",
            {"name": name},
            t("policy.remove"),
            danger=True,
            confirm=t("policy.remove_sure"),
            back=build_url("policy"),
        )
        if is_own
        else None
    )
    body = join_html(
        h.p(_render_effect(view, policy_rule.effect), " ", h.span(policy_rule.says, dir="auto")),
        fact_list({t("policy.layer"): t.of("policy.layer", policy_rule.layer)}),
        card(t("policy.text"), h.pre(policy_rule.text, tabindex="0")),
        h.div(remove_button, class_="actions") if is_own else None,
        h.p(h.a(t("policy.decided"), href=build_url("audit", {"verb": "guard.deny"}))),
    )
    return Page(h.bdi(policy_rule.name), body, live=("policy",))


def render_roles_page(view: PageView) -> Page:
    """Who may do what to which family of things: one table, from which the permits are made."""
    t = view.t
    role_rows: Sequence[RoleRow] = view.here.policy.roles()
    families = list(role_rows[0].allows) if role_rows else []
    rows = [
        TableRow(
            (h.bdi(item.role, class_="nowrap"), *(_render_groups(view, item.allows[family]) for family in families)),
            id=item.role,
        )
        for item in role_rows
    ]
    headers = (t("policy.role"), *(t.of("policy.family", family) for family in families))
    group_legend = fact_list(
        [(t.of("policy.group", item), t.of("policy.means", item)) for item in _list_groups(role_rows)]
    )
    body = join_html(table(view, headers, rows, t("policy.roles")), card(t("policy.legend"), group_legend))
    return Page(t("policy.roles"), body, wide=True)


def _list_groups(role_rows: Sequence[RoleRow]) -> list[str]:
    """The groups that some role has, in the order in which they appear."""
    return list(
        dict.fromkeys(
            group for role_row in role_rows for groups in role_row.allows.values() for group in groups.split()
        )
    )


def _render_groups(view: PageView, groups: str) -> Html:
    return join_html([h.span(view.t.of("policy.group", group), class_="tag") for group in groups.split()])


def _render_effect(view: PageView, effect: str) -> Html:
    badge_class = "good" if effect == "permit" else "bad"
    return h.span(view.t.of("policy.effect", effect), class_=f"badge {badge_class}")


def _render_table(view: PageView, policy_rules: Sequence[PolicyText]) -> Html:
    t = view.t
    rows = [
        TableRow(
            (
                h.a(
                    h.bdi(policy_rule.name),
                    href=build_url(f"policy/policy:policies/{policy_rule.name}"),
                    class_="nowrap",
                ),
                _render_effect(view, policy_rule.effect),
                h.span(policy_rule.says, dir="auto"),
            ),
            id=policy_rule.name,
        )
        for policy_rule in policy_rules
    ]
    return table(view, (t("policy.rule"), t("policy.effect"), t("policy.says")), rows, t("policy.title"))


def _render_add_button(view: PageView) -> Html:
    t = view.t
    fields = (
        FormField("name", t("console.name"), required=True, hint=t("policy.name_hint")),
        FormField("text", t("policy.text"), "textarea", EXAMPLE_RULE, required=True),
    )
    return action_button(view, "policy", "add", {}, t("policy.add"), fields, confirm=t("policy.narrow"))
