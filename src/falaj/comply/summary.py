"""The summary people read, in Arabic and English: what is there, what is absent, what is not verified."""

import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from falaj.comply.mapping import documents
from falaj.comply.records import (
    ATTESTED,
    EXCEPTIONS,
    NOT_APPLICABLE,
    NOT_SHOWN,
    OPERATING,
    STATUSES,
    ControlMap,
    Judged,
)
from falaj.core.phrases import translate_phrases
from falaj.govern.records import Regime

MARKS = {OPERATING: "✔", EXCEPTIONS: "◐", ATTESTED: "✎", NOT_SHOWN: "✘", NOT_APPLICABLE: "-"}
OPEN_STATUSES = (NOT_SHOWN, EXCEPTIONS)
"""What stands first and is red on the page."""
FILE = Path(__file__).with_name("words.toml")


@cache
def words_of(language: str) -> dict[str, str]:
    """What is said in one language."""
    found: dict[str, str] = tomllib.loads(FILE.read_text(encoding="utf-8"))[language]
    return found


@cache
def _phrases() -> dict[str, str]:
    """English and Arabic."""
    phrases: dict[str, str] = tomllib.loads(FILE.read_text(encoding="utf-8"))["phrases"]
    return phrases | {document.title["en"]: document.title["ar"] for document in documents().values()}


def said(reason: str, language: str) -> str:
    """A reason in a language. Reasons are made of few phrases, so these are looked up and no text is written twice."""
    return translate_phrases(reason, _phrases()) if language == "ar" else reason


def markdown(
    language: str, asked: ControlMap, facts: Mapping[str, str], controls: Sequence[Judged], unverified: Sequence[str]
) -> str:
    """One language as markdown."""
    words = words_of(language)
    lines = [f"# {words['title']}: {asked.id}", "", asked.title[language], "", f"**{words['not']}**", ""]
    lines += [words["who"], "", words["state"], ""]
    lines += [f"- {words[name]}: {value}" for name, value in facts.items()]
    lines += [f"- {_counted(words, controls)}", "", f"## ✘ {words['absent']}", ""]
    lines += [
        f"- **{_name(one, language)}** [{words[one.status]}]: {said(one.reason, language)}"
        for status in OPEN_STATUSES
        for one in controls
        if one.status == status
    ] or [f"- {words['none']}"]
    lines += ["", f"## {words['unverified']}", "", *(f"- {text}" for text in unverified)]
    lines += ["", f"## {words['controls']}", ""]
    for control in controls:
        if control.clauses:
            status, reason = words[control.status], said(control.reason, language)
            lines.append(f"- {MARKS[control.status]} {_name(control, language)} [{status}]: {reason}")
            lines.append(f"  - {', '.join(control.clauses)}; {words['checked']}: {control.source} ({control.checked})")
            if control.not_covered:
                lines.append(f"  - {words['covered']}: {'; '.join(control.not_covered)}")
    if unasked := [_name(control, language) for control in controls if not control.clauses]:
        lines.append(f"- {MARKS[NOT_APPLICABLE]} {words['unasked']} {'; '.join(unasked)}")
    return "\n".join(lines) + "\n"


def unverified(asked: ControlMap, regime: Regime | None, missing: Mapping[str, str]) -> list[str]:
    """Everything a reader must not take for checked."""
    said = [f"{asked.id}, control map version {asked.version}: review by {asked.review_by}", *asked.notes]
    loose = sorted(one.control for one in asked.controls if one.checked != "primary")
    said.append(f"clauses not read in the primary text: {', '.join(loose) or 'none'}")
    if regime is not None:
        said.append(f"regime profile version {regime.version}: {regime.status}, checked {regime.checked}")
        said += regime.notes
        said += [f"deadline {duty}: {deadline.source.checked}" for duty, deadline in sorted(regime.deadlines.items())]
    return said + [f"{name} could not be read: {why}" for name, why in sorted(missing.items())]


def day(at: float) -> str:
    """A moment as people write it."""
    return datetime.fromtimestamp(at, UTC).isoformat()


def _counted(words: Mapping[str, str], controls: Sequence[Judged]) -> str:
    return ", ".join(f"{words[status]}: {sum(one.status == status for one in controls)}" for status in STATUSES)


def _name(one: Judged, language: str) -> str:
    return f"{one.id} {one.title[language]}"
