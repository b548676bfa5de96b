"""Policy: the rules that bind, what each role may do, and why a decision fell."""

from falaj.console.page import PageRoute
from falaj.console.pages.policy.policy_explain import render_explain_page
from falaj.console.pages.policy.policy_rules import render_policy_page, render_roles_page, render_rule_page

ROUTES: tuple[PageRoute, ...] = (
    PageRoute("policy", render_policy_page, ("policy", "policy?layer=guardrail", "policy?layer=role")),
    PageRoute("policy/roles", render_roles_page, ("policy/roles",)),
    PageRoute("policy/explain", render_explain_page, ("policy/explain", "policy/explain?what=keys.rotate")),
    PageRoute("policy/<ref>", render_rule_page, ("policy/policy:policies/guard-residency",)),
)
