"""Why a job waits: the one reason, when it starts, and the smallest change that starts it now, as a button."""

from collections.abc import Mapping

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import build_url
from falaj.console.page_view import PageView
from falaj.core.context import SYSTEM_TENANT
from falaj.core.ref import Ref
from falaj.jobs.records import WaitExplanation
from falaj.jobs.views import to_calls

_BUTTON_OPERATIONS = ("jobs.change", "queues.change")
"""What has a button here; what stops others, or opens what somebody closed, is typed."""


def render_wait_reason(view: PageView, job: Ref) -> Html:
    """The card on a job's page."""
    wait_reason: WaitExplanation = view.here.jobs.why(job)
    t = view.t
    start_text = (
        t("jobs.starts", when=view.when(wait_reason.starts_at)) if wait_reason.starts_at else t("jobs.starts_unknown")
    )
    reason_badge = h.span(t.of("jobs.reason", wait_reason.reason), class_="badge wait")
    reason_line = h.p(reason_badge, " ", view.english(wait_reason.text) if wait_reason.text else t("jobs.held"))
    return components.card(
        t("jobs.why"), reason_line, h.p(start_text, class_="soft"), _render_fix(view, wait_reason), id="why"
    )


def _render_fix(view: PageView, wait_reason: WaitExplanation) -> Html:
    if not wait_reason.fix:
        return EMPTY
    t = view.t
    calls = [
        (call, call_arguments)
        for call, call_arguments in to_calls(wait_reason.job, wait_reason.change.items())
        if call in _BUTTON_OPERATIONS
    ]
    heading = h.h3(t("jobs.would_start"))
    fix_line = h.p(view.english(wait_reason.fix))
    if calls:
        return join_html(
            heading,
            fix_line,
            h.div(
                [_render_call_button(view, call, call_arguments) for call, call_arguments in calls], class_="actions"
            ),
        )
    retry_url = _build_retry_url(wait_reason)
    retry_link = h.p(h.a(t("jobs.ask_again"), href=retry_url, class_="button primary")) if retry_url else EMPTY
    return join_html(heading, fix_line, retry_link)


def _render_call_button(view: PageView, call: str, call_arguments: Mapping[str, object]) -> Html:
    service_name, operation_name = call.split(".")
    if service_name == "queues" and view.actor.tenant != SYSTEM_TENANT:
        return components.notice("denied", view.t("jobs.house_only"))
    label = (
        view.t("jobs.do_it")
        if service_name == "jobs"
        else view.t("jobs.change_queue", name=str(call_arguments["name"]))
    )
    return components.action_button(
        view, service_name, operation_name, call_arguments, label, primary=True, id=f"fix-{service_name}"
    )


def _build_retry_url(wait_reason: WaitExplanation) -> str:
    """A job's model of GPU and topology are for ever: another job asks for others."""
    overrides_by_name = {"models": {"models": "any"}, "level": {"topology": "any"}}
    overrides = {key: value for name in wait_reason.change for key, value in overrides_by_name.get(name, {}).items()}
    return build_url("jobs/new", {"from": str(wait_reason.job), **overrides}) if overrides else ""
