"""What can be done to an endpoint, as buttons."""

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h
from falaj.console.parts import Field
from falaj.console.view import View
from falaj.serve.records import RUNNING, EndpointView

TRIALS = (
    ("all", ""),
    ("canary", '{"trial": {"kind": "canary", "share": 0.1, "judge": true}}'),
    ("watched", '{"trial": {"kind": "canary", "share": 0.1}}'),
    ("shadow", '{"trial": {"kind": "shadow", "share": 1.0}}'),
    ("ab", '{"trial": {"kind": "ab", "share": 0.5}}'),
)
"""How a new revision gets its traffic: a word of ours, and the plan that says it."""


def actions(view: View, one: EndpointView) -> Html:
    """Deploy, stop and start; what ends a roll-out stands beside its evidence."""
    running = one.rollout is not None and one.rollout.state == RUNNING
    back = EMPTY if running or len(one.revisions) < 2 else rollback(view, one)
    return h.div(_deploy(view, one), back, _stop(view, one), class_="actions")


def _deploy(view: View, one: EndpointView) -> Html:
    t, newest = view.t, one.revisions[-1].model
    fields = (
        Field("model", t("console.model"), required=True, value=f"{newest.bare}@"),
        Field("plan", t("serve.how"), "select", options=[(plan, t.of("serve.trial", name)) for name, plan in TRIALS]),
    )
    return parts.action(view, "serve", "add", {"endpoint": one.ref}, t("serve.deploy_here"), fields)


def _stop(view: View, one: EndpointView) -> Html:
    t = view.t
    if one.state == "stopped":
        return parts.action(view, "serve", "start", {"endpoint": one.ref}, t("serve.start"), primary=True)
    reason = (Field("reason", t("console.reason")),)
    return parts.action(view, "serve", "stop", {"endpoint": one.ref}, t("serve.stop"), reason, danger=True,
                        confirm=t("serve.stop_sure"))  # fmt: skip


def rollback(view: View, one: EndpointView) -> Html:
    """Back to a revision; while one is tried, back to its base."""
    t = view.t
    reason = Field("reason", t("console.reason"))
    running = one.rollout is not None and one.rollout.state == RUNNING
    others = [str(known.number) for known in reversed(one.revisions) if str(known.number) not in one.traffic]
    names = [("", t("serve.one_before")), *((number, t("serve.revision_n", n=int(number))) for number in others[:20])]
    fields = (reason,) if running else (Field("to", t("serve.revision"), "select", options=names), reason)
    return parts.action(view, "serve", "rollback", {"endpoint": one.ref}, t("serve.rollback"), fields, danger=True,
                        confirm=t("serve.rollback_sure"))  # fmt: skip


def promote(view: View, one: EndpointView) -> Html:
    """All traffic to what is tried."""
    reason = (Field("reason", view.t("console.reason")),)
    return parts.action(view, "serve", "promote", {"endpoint": one.ref}, view.t("serve.promote"), reason, primary=True,
                        confirm=view.t("serve.promote_sure"))  # fmt: skip


def scale(view: View, one: EndpointView) -> Html:
    """How many replicas, and when."""
    t, now = view.t, one.scale
    fields = (
        Field("least", t("serve.least"), "number", value=str(now.least)),
        Field("most", t("serve.most"), "number", value=str(now.most)),
        Field("concurrency", t("serve.concurrency"), "number", value=f"{now.concurrency:g}"),
        Field("idle_s", t("serve.idle_s"), "number", value=f"{now.idle_s:g}"),
    )
    return parts.action(view, "serve", "scale", {"endpoint": one.ref}, t("serve.scale"), fields)


def change(view: View, one: EndpointView) -> Html:
    """What callers are held to."""
    t = view.t
    field = Field("more", t("serve.rules"), "textarea", required=True, value=f"per_s={one.rules.per_s:g}",
                  hint=t("serve.rules_hint"))  # fmt: skip
    return parts.action(view, "serve", "change", {"endpoint": one.ref}, t("serve.change"), (field,))
