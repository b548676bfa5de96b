"""View: what a page function is given: the platform as its reader sees it, the words of their language, the address."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from falaj.console import formatting
from falaj.console.markup import EMPTY, Html, escape_text, fill_placeholders, h, join_html, make_placeholder
from falaj.console.page import build_url
from falaj.console.recorded_calls import RecordedCall
from falaj.console.words import Translator, load_messages
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError
from falaj.core.operation import Operation
from falaj.govern.people_records import DecisionExplanation
from falaj.govern.policy_service import MAX_QUESTIONS
from falaj.server import LocalClient, Server


class RecordingClient(LocalClient):
    """The platform, which remembers what was asked of it: the page shows how to ask the same elsewhere."""

    def __init__(self, server: Server, actor: Actor, purpose: str = "") -> None:
        super().__init__(server, actor, purpose)
        self.asked: list[RecordedCall] = []

    def _call_operation(self, service_name: str, operation: Operation, arguments: dict[str, Any]) -> Any:
        self.asked.append(RecordedCall(service_name, operation.name, arguments))
        return super()._call_operation(service_name, operation, arguments)


@dataclass(frozen=True, slots=True)
class DisplayPreferences:
    """How a person wants the console to be."""

    lang: str = "en"
    theme: str = ""
    """light, dark, or as the system is."""
    indic: bool = False
    purpose: str = ""


@dataclass(slots=True)
class PageView:
    """One look at one page."""

    here: RecordingClient
    look: DisplayPreferences
    t: Translator
    path: str
    """Below /console."""
    args: Mapping[str, str]
    asked: Mapping[str, str]
    """The query; use `query`."""
    csrf: str = ""
    form: Mapping[str, str] = field(default_factory=dict)
    """What was filled in and sent to this very page, where its route takes a form."""
    now: float = field(default_factory=time.time)
    _missing_by_check: dict[tuple[str, str], Html] = field(default_factory=dict)
    _deferred_parts: list[tuple[tuple[str, str], Callable[[Html], Html]]] = field(default_factory=list)

    @property
    def actor(self) -> Actor:
        """Who looks."""
        return self.here.actor

    @property
    def lang(self) -> str:
        """The language, as `lang` has it."""
        return self.look.lang

    @property
    def rtl(self) -> bool:
        """True when the page runs from right to left."""
        return self.t.rtl

    def query(self, name: str, default: str = "") -> str:
        """One value of the address."""
        return self.asked.get(name, default)

    def count(self, name: str, default: int, max_value: int = 1_000_000) -> int:
        """One number of the address, within bounds; what is no number is the default."""
        query_text = self.asked.get(name, "")
        return min(max_value, int(query_text)) if query_text.isdecimal() and len(query_text) < 12 else default

    def link(self, **changes: object) -> str:
        """This page with another query; an empty value takes a name away."""
        return build_url(self.path, {**self.asked, **changes})

    def number(self, value: float | None) -> Html:
        """A count or a measurement."""
        return formatting.format_number(self.t, value)

    def percent(self, share: float, decimals: int = 1) -> Html:
        """A share of one."""
        return formatting.format_percent(self.t, share, decimals)

    def bytes(self, amount: float) -> Html:
        """A size."""
        return formatting.format_size(self.t, amount)

    def duration(self, seconds: float) -> Html:
        """A length of time."""
        return formatting.format_duration(self.t, seconds)

    def when(self, timestamp: float) -> Html:
        """A moment, in Gulf time."""
        return formatting.render_timestamp(self.t, timestamp, self.now)

    def ago(self, timestamp: float) -> Html:
        """A moment, by how far away it is."""
        return formatting.render_timestamp(self.t, timestamp, self.now, is_relative=True)

    def part(self, render: Callable[[], Html]) -> Html:
        """A part of a page; where it cannot be shown, what is true and what it would need."""
        try:
            return render()
        except FalajError as error:
            return render_error(self, error)

    def english(self, english_text: str, **attributes: str) -> Html:
        """A sentence that a room made: rooms speak English, and a page in another language says so."""
        return (
            h.bdi(english_text, **attributes)
            if self.lang == "en"
            else h.span(english_text, lang="en", dir="ltr", **attributes)
        )

    def why_not(self, explanation: DecisionExplanation) -> Html:
        """Why policy says no: by the rule, in the reader's language, and in the words of the rule."""
        detail = f"{explanation.reason}. {explanation.hint}".strip(". ") + "."
        if self.lang == "en":
            return escape_text(detail)
        explained_rule = next(
            (rule_name for rule_name in explanation.rules if f"console.lacks.{rule_name}" in load_messages(self.lang)),
            "",
        )
        message_key = explained_rule or (
            "tenant" if any(rule_name.startswith("tenant-") for rule_name in explanation.rules) else "other"
        )
        return join_html(self.t.of("console.lacks", message_key), " ", self.english(detail))

    def lacks(self, action: str, resource: object = "") -> Html:
        """Empty when the reader may do this; else what they would need. Asked at once: `knowing` can wait."""
        check = (action, str(resource))
        self._check_permissions((check,))
        return self._missing_by_check[check]

    def knowing(self, action: str, resource: object, render: Callable[[Html], Html]) -> Html:
        """What `render` gives when told what the reader lacks; a page asks for all its buttons together, at its end."""
        self._deferred_parts.append(((action, str(resource)), render))
        return make_placeholder(len(self._deferred_parts) - 1)

    def settled(self, body: Html) -> Html:
        """The page with everything in place that had to wait."""
        self._check_permissions([check for check, _ in self._deferred_parts])
        return fill_placeholders(
            body, [render(self._missing_by_check[check]) for check, render in self._deferred_parts]
        )

    def _check_permissions(self, checks: Sequence[tuple[str, str]]) -> None:
        new_checks = [check for check in dict.fromkeys(checks) if check not in self._missing_by_check]
        # Beside what the page asks for: it is no part of what somebody would type.
        policy_service = LocalClient(self.here.house, self.actor, self.here.purpose).policy
        for start in range(0, len(new_checks), MAX_QUESTIONS):
            batch = new_checks[start : start + MAX_QUESTIONS]
            try:
                explanations = policy_service.may(tuple(" ".join(check).strip() for check in batch))
            except FalajError as error:
                explanations = [
                    DecisionExplanation(False, check[0], (), error.message, error.hint, "", "") for check in batch
                ]
            for check, explanation in zip(batch, explanations, strict=True):
                self._missing_by_check[check] = EMPTY if explanation.allowed else self.why_not(explanation)


def render_error(view: PageView, error: FalajError) -> Html:
    """An error as a part of a page: what is true, and what to do."""
    notice_kind = "denied" if isinstance(error, Denied) else "bad"
    return h.div(render_error_text(view.t, error), class_=f"notice {notice_kind}", role="note")


def render_error_text(t: Translator, error: FalajError) -> Html:
    """What an error is and what to do, by its class in the reader's language; what it says itself is English."""
    title = h.strong(t.of("console.error", error.code))
    if t.lang == "en":
        return join_html(
            h.p(title, " ", h.bdi(error.message)), h.p(h.bdi(error.hint), class_="soft") if error.hint else None
        )
    detail = h.p(f"{error.message}. {error.hint}".strip(". ") + ".", lang="en", dir="ltr", class_="soft")
    return join_html(h.p(title, " ", t.of("console.error_hint", error.code)), detail)
