"""View: what a page function is given: the platform as its reader sees it, the words of their language, the address."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from falaj.console import writing
from falaj.console.lines import Line
from falaj.console.markup import EMPTY, Html, h, join, late, settled, text
from falaj.console.page import address
from falaj.console.words import Words, messages
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError
from falaj.core.verb import Verb
from falaj.govern.people_records import Explanation
from falaj.govern.policy_desk import MOST_ASKED
from falaj.platform import House, Platform


class Here(Platform):
    """The platform, which remembers what was asked of it: the page shows how to ask the same elsewhere."""

    def __init__(self, house: House, actor: Actor, purpose: str = "") -> None:
        super().__init__(house, actor, purpose)
        self.asked: list[Line] = []

    def _call(self, desk: str, verb: Verb, arguments: dict[str, Any]) -> Any:
        self.asked.append(Line(desk, verb.name, arguments))
        return super()._call(desk, verb, arguments)


@dataclass(frozen=True, slots=True)
class Look:
    """How a person wants the console to be."""

    lang: str = "en"
    theme: str = ""
    """light, dark, or as the system is."""
    indic: bool = False
    purpose: str = ""


@dataclass(slots=True)
class View:
    """One look at one page."""

    here: Here
    look: Look
    t: Words
    path: str
    """Below /console."""
    args: Mapping[str, str]
    asked: Mapping[str, str]
    """The query; use `query`."""
    csrf: str = ""
    form: Mapping[str, str] = field(default_factory=dict)
    """What was filled in and sent to this very page, where its route takes a form."""
    now: float = field(default_factory=time.time)
    _may: dict[tuple[str, str], Html] = field(default_factory=dict)
    _late: list[tuple[tuple[str, str], Callable[[Html], Html]]] = field(default_factory=list)

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

    def count(self, name: str, default: int, most: int = 1_000_000) -> int:
        """One number of the address, within bounds; what is no number is the default."""
        given = self.asked.get(name, "")
        return min(most, int(given)) if given.isdecimal() and len(given) < 12 else default

    def link(self, **changes: object) -> str:
        """This page with another query; an empty value takes a name away."""
        return address(self.path, {**self.asked, **changes})

    def number(self, value: float | None) -> Html:
        """A count or a measurement."""
        return writing.number(self.t, value)

    def percent(self, share: float, places: int = 1) -> Html:
        """A share of one."""
        return writing.percent(self.t, share, places)

    def bytes(self, amount: float) -> Html:
        """A size."""
        return writing.size(self.t, amount)

    def duration(self, seconds: float) -> Html:
        """A length of time."""
        return writing.duration(self.t, seconds)

    def when(self, at: float) -> Html:
        """A moment, in Gulf time."""
        return writing.stamp(self.t, at, self.now)

    def ago(self, at: float) -> Html:
        """A moment, by how far away it is."""
        return writing.stamp(self.t, at, self.now, ago=True)

    def part(self, make: Callable[[], Html]) -> Html:
        """A part of a page; where it cannot be shown, what is true and what it would need."""
        try:
            return make()
        except FalajError as error:
            return said(self, error)

    def english(self, words: str, **more: str) -> Html:
        """A sentence that a room made: rooms speak English, and a page in another language says so."""
        return h.bdi(words, **more) if self.lang == "en" else h.span(words, lang="en", dir="ltr", **more)

    def why_not(self, told: Explanation) -> Html:
        """Why policy says no: by the rule, in the reader's language, and in the words of the rule."""
        detail = f"{told.reason}. {told.hint}".strip(". ") + "."
        if self.lang == "en":
            return text(detail)
        rule = next((one for one in told.rules if f"console.lacks.{one}" in messages(self.lang)), "")
        known = rule or ("tenant" if any(one.startswith("tenant-") for one in told.rules) else "other")
        return join(self.t.of("console.lacks", known), " ", self.english(detail))

    def lacks(self, action: str, ref: object = "") -> Html:
        """Empty when the reader may do this; else what they would need. Asked at once: `knowing` can wait."""
        key = (action, str(ref))
        self._ask((key,))
        return self._may[key]

    def knowing(self, action: str, ref: object, make: Callable[[Html], Html]) -> Html:
        """What `make` gives when told what the reader lacks; a page asks for all its buttons together, at its end."""
        self._late.append(((action, str(ref)), make))
        return late(len(self._late) - 1)

    def settled(self, body: Html) -> Html:
        """The page with everything in place that had to wait."""
        self._ask([key for key, _ in self._late])
        return settled(body, [make(self._may[key]) for key, make in self._late])

    def _ask(self, keys: Sequence[tuple[str, str]]) -> None:
        fresh = [key for key in dict.fromkeys(keys) if key not in self._may]
        # Beside what the page asks for: it is no part of what somebody would type.
        desk = Platform(self.here.house, self.actor, self.here.purpose).policy
        for start in range(0, len(fresh), MOST_ASKED):
            some = fresh[start : start + MOST_ASKED]
            try:
                found = desk.may(tuple(" ".join(key).strip() for key in some))
            except FalajError as error:
                found = [Explanation(False, key[0], (), error.message, error.hint, "", "") for key in some]
            for key, told in zip(some, found, strict=True):
                self._may[key] = EMPTY if told.allowed else self.why_not(told)


def said(view: View, error: FalajError) -> Html:
    """An error as a part of a page: what is true, and what to do."""
    kind = "denied" if isinstance(error, Denied) else "bad"
    return h.div(told_of(view.t, error), class_=f"notice {kind}", role="note")


def told_of(t: Words, error: FalajError) -> Html:
    """What an error is and what to do, by its class in the reader's language; what it says itself is English."""
    title = h.strong(t.of("console.error", error.code))
    if t.lang == "en":
        return join(
            h.p(title, " ", h.bdi(error.message)), h.p(h.bdi(error.hint), class_="soft") if error.hint else None
        )
    detail = h.p(f"{error.message}. {error.hint}".strip(". ") + ".", lang="en", dir="ltr", class_="soft")
    return join(h.p(title, " ", t.of("console.error_hint", error.code)), detail)
