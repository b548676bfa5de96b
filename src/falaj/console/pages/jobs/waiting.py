"""Why a job waits: the one reason, when it starts, and the smallest change that starts it now, as a button."""

from collections.abc import Mapping

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import address
from falaj.console.view import View
from falaj.core.context import HOUSE
from falaj.core.ref import Ref
from falaj.jobs.records import Why
from falaj.jobs.views import fixes

_PRESSED = ("jobs.change", "queues.change")
"""What has a button here; what stops others, or opens what somebody closed, is typed."""


def waiting(view: View, job: Ref) -> Html:
    """The card on a job's page."""
    why: Why = view.here.jobs.why(job)
    t = view.t
    when = t("jobs.starts", when=view.when(why.starts_at)) if why.starts_at else t("jobs.starts_unknown")
    word = h.span(t.of("jobs.reason", why.reason), class_="badge wait")
    said = h.p(word, " ", view.english(why.text) if why.text else t("jobs.held"))
    return parts.card(t("jobs.why"), said, h.p(when, class_="soft"), _fix(view, why), id="why")


def _fix(view: View, why: Why) -> Html:
    if not why.fix:
        return EMPTY
    t = view.t
    calls = [(call, given) for call, given in fixes(why.job, why.change.items()) if call in _PRESSED]
    head = h.h3(t("jobs.would_start"))
    said = h.p(view.english(why.fix))
    if calls:
        return join(head, said, h.div([_button(view, call, given) for call, given in calls], class_="actions"))
    again = _again(why)
    way = h.p(h.a(t("jobs.ask_again"), href=again, class_="button primary")) if again else EMPTY
    return join(head, said, way)


def _button(view: View, call: str, given: Mapping[str, object]) -> Html:
    desk, verb = call.split(".")
    if desk == "queues" and view.actor.tenant != HOUSE:
        return parts.notice("denied", view.t("jobs.house_only"))
    label = view.t("jobs.do_it") if desk == "jobs" else view.t("jobs.change_queue", name=str(given["name"]))
    return parts.action(view, desk, verb, given, label, primary=True, id=f"fix-{desk}")


def _again(why: Why) -> str:
    """A job's model of GPU and topology are for ever: another job asks for others."""
    change = {"models": {"models": "any"}, "level": {"topology": "any"}}
    found = {key: value for name in why.change for key, value in change.get(name, {}).items()}
    return address("jobs/new", {"from": str(why.job), **found}) if found else ""
