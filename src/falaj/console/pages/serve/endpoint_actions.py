"""What can be done to an endpoint, as buttons."""

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import EMPTY, Html, h
from falaj.console.page_view import PageView
from falaj.serve.records import RUNNING, EndpointView

TRIAL_PLANS = (
    ("all", ""),
    ("canary", '{"trial": {"kind": "canary", "share": 0.1, "judge": true}}'),
    ("watched", '{"trial": {"kind": "canary", "share": 0.1}}'),
    ("shadow", '{"trial": {"kind": "shadow", "share": 1.0}}'),
    ("ab", '{"trial": {"kind": "ab", "share": 0.5}}'),
)
"""How a new revision gets its traffic: a word of ours, and the plan that says it."""


def render_actions(view: PageView, endpoint_view: EndpointView) -> Html:
    """Deploy, stop and start; what ends a roll-out stands beside its evidence."""
    is_rolling_out = endpoint_view.rollout is not None and endpoint_view.rollout.state == RUNNING
    rollback_button = (
        EMPTY if is_rolling_out or len(endpoint_view.revisions) < 2 else render_rollback_button(view, endpoint_view)
    )
    return h.div(
        _render_deploy_button(view, endpoint_view),
        rollback_button,
        _render_stop_button(view, endpoint_view),
        class_="actions",
    )


def _render_deploy_button(view: PageView, endpoint_view: EndpointView) -> Html:
    t, newest = view.t, endpoint_view.revisions[-1].model
    fields = (
        FormField("model", t("console.model"), required=True, value=f"{newest.bare}@"),
        FormField(
            "plan", t("serve.how"), "select", options=[(plan, t.of("serve.trial", name)) for name, plan in TRIAL_PLANS]
        ),
    )
    return components.action_button(
        view, "serve", "add", {"endpoint": endpoint_view.ref}, t("serve.deploy_here"), fields
    )


def _render_stop_button(view: PageView, endpoint_view: EndpointView) -> Html:
    t = view.t
    if endpoint_view.state == "stopped":
        return components.action_button(
            view, "serve", "start", {"endpoint": endpoint_view.ref}, t("serve.start"), primary=True
        )
    reason_fields = (FormField("reason", t("console.reason")),)
    return components.action_button(
        view,
        "serve",
        "stop",
        {"endpoint": endpoint_view.ref},
        t("serve.stop"),
        reason_fields,
        danger=True,
        confirm=t("serve.stop_sure"),
    )


def render_rollback_button(view: PageView, endpoint_view: EndpointView) -> Html:
    """Back to a revision; while one is tried, back to its base."""
    t = view.t
    reason_field = FormField("reason", t("console.reason"))
    is_rolling_out = endpoint_view.rollout is not None and endpoint_view.rollout.state == RUNNING
    other_revisions = [
        str(revision.number)
        for revision in reversed(endpoint_view.revisions)
        if str(revision.number) not in endpoint_view.traffic
    ]
    revision_options = [
        ("", t("serve.one_before")),
        *((number, t("serve.revision_n", n=int(number))) for number in other_revisions[:20]),
    ]
    fields = (
        (reason_field,)
        if is_rolling_out
        else (FormField("to", t("serve.revision"), "select", options=revision_options), reason_field)
    )
    return components.action_button(
        view,
        "serve",
        "rollback",
        {"endpoint": endpoint_view.ref},
        t("serve.rollback"),
        fields,
        danger=True,
        confirm=t("serve.rollback_sure"),
    )


def render_promote_button(view: PageView, endpoint_view: EndpointView) -> Html:
    """All traffic to what is tried."""
    reason_fields = (FormField("reason", view.t("console.reason")),)
    return components.action_button(
        view,
        "serve",
        "promote",
        {"endpoint": endpoint_view.ref},
        view.t("serve.promote"),
        reason_fields,
        primary=True,
        confirm=view.t("serve.promote_sure"),
    )


def render_scale_button(view: PageView, endpoint_view: EndpointView) -> Html:
    """How many replicas, and when."""
    t, current_scale = view.t, endpoint_view.scale
    fields = (
        FormField("least", t("serve.least"), "number", value=str(current_scale.least)),
        FormField("most", t("serve.most"), "number", value=str(current_scale.most)),
        FormField("concurrency", t("serve.concurrency"), "number", value=f"{current_scale.concurrency:g}"),
        FormField("idle_s", t("serve.idle_s"), "number", value=f"{current_scale.idle_s:g}"),
    )
    return components.action_button(view, "serve", "scale", {"endpoint": endpoint_view.ref}, t("serve.scale"), fields)


def render_change_button(view: PageView, endpoint_view: EndpointView) -> Html:
    """What callers are held to."""
    t = view.t
    rules_field = FormField(
        "more",
        t("serve.rules"),
        "textarea",
        required=True,
        value=f"per_s={endpoint_view.rules.per_s:g}",
        hint=t("serve.rules_hint"),
    )
    return components.action_button(
        view, "serve", "change", {"endpoint": endpoint_view.ref}, t("serve.change"), (rules_field,)
    )
