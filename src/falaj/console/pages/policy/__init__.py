"""Policy: the rules that bind, what each role may do, and why a decision fell."""

from falaj.console.page import Route
from falaj.console.pages.policy.asking import explain
from falaj.console.pages.policy.rules import policy, roles, rule

ROUTES: tuple[Route, ...] = (
    Route("policy", policy, ("policy", "policy?layer=guardrail", "policy?layer=role")),
    Route("policy/roles", roles, ("policy/roles",)),
    Route("policy/explain", explain, ("policy/explain", "policy/explain?what=keys.rotate")),
    Route("policy/<ref>", rule, ("policy/policy:policies/guard-residency",)),
)
