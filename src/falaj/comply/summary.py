"""The summary people read, in Arabic and English: what is there, what is absent, what is not verified."""

import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from falaj.comply.control_maps import load_document_kinds
from falaj.comply.records import (
    ATTESTED,
    EXCEPTIONS,
    NOT_APPLICABLE,
    NOT_SHOWN,
    OPERATING,
    STATUSES,
    ControlJudgement,
    ControlMap,
)
from falaj.core.phrase_translation import translate_phrases
from falaj.govern.records import LegalRegime

STATUS_MARKS = {OPERATING: "✔", EXCEPTIONS: "◐", ATTESTED: "✎", NOT_SHOWN: "✘", NOT_APPLICABLE: "-"}
OPEN_STATUSES = (NOT_SHOWN, EXCEPTIONS)
"""What stands first and is red on the page."""
WORDS_FILE = Path(__file__).with_name("words.toml")


@cache
def load_words(language: str) -> dict[str, str]:
    """What is said in one language."""
    words: dict[str, str] = tomllib.loads(WORDS_FILE.read_text(encoding="utf-8"))[language]
    return words


@cache
def _load_phrases() -> dict[str, str]:
    """English and Arabic."""
    phrases: dict[str, str] = tomllib.loads(WORDS_FILE.read_text(encoding="utf-8"))["phrases"]
    return phrases | {document.title["en"]: document.title["ar"] for document in load_document_kinds().values()}


def translate_reason(reason: str, language: str) -> str:
    """A reason in a language. Reasons are made of few phrases, so these are looked up and no text is written twice."""
    return translate_phrases(reason, _load_phrases()) if language == "ar" else reason


def format_markdown(
    language: str,
    regime_map: ControlMap,
    pack_facts: Mapping[str, str],
    controls: Sequence[ControlJudgement],
    unverified: Sequence[str],
) -> str:
    """One language as markdown."""
    words = load_words(language)
    lines = [f"# {words['title']}: {regime_map.id}", "", regime_map.title[language], "", f"**{words['not']}**", ""]
    lines += [words["who"], "", words["state"], ""]
    lines += [f"- {words[name]}: {value}" for name, value in pack_facts.items()]
    lines += [f"- {_format_counts(words, controls)}", "", f"## ✘ {words['absent']}", ""]
    lines += [
        f"- **{_format_control_name(control, language)}** [{words[control.status]}]: "
        f"{translate_reason(control.reason, language)}"
        for status in OPEN_STATUSES
        for control in controls
        if control.status == status
    ] or [f"- {words['none']}"]
    lines += ["", f"## {words['unverified']}", "", *(f"- {text}" for text in unverified)]
    lines += ["", f"## {words['controls']}", ""]
    for control in controls:
        if control.clauses:
            status, reason = words[control.status], translate_reason(control.reason, language)
            lines.append(
                f"- {STATUS_MARKS[control.status]} {_format_control_name(control, language)} [{status}]: {reason}"
            )
            lines.append(f"  - {', '.join(control.clauses)}; {words['checked']}: {control.source} ({control.checked})")
            if control.not_covered:
                lines.append(f"  - {words['covered']}: {'; '.join(control.not_covered)}")
    if unasked := [_format_control_name(control, language) for control in controls if not control.clauses]:
        lines.append(f"- {STATUS_MARKS[NOT_APPLICABLE]} {words['unasked']} {'; '.join(unasked)}")
    return "\n".join(lines) + "\n"


def list_unverified(regime_map: ControlMap, regime: LegalRegime | None, missing: Mapping[str, str]) -> list[str]:
    """Everything a reader must not take for checked."""
    notes = [
        f"{regime_map.id}, control map version {regime_map.version}: review by {regime_map.review_by}",
        *regime_map.notes,
    ]
    unread_clauses = sorted(clause.control for clause in regime_map.controls if clause.checked != "primary")
    notes.append(f"clauses not read in the primary text: {', '.join(unread_clauses) or 'none'}")
    if regime is not None:
        notes.append(f"regime profile version {regime.version}: {regime.status}, checked {regime.checked}")
        notes += regime.notes
        notes += [f"deadline {duty}: {deadline.source.checked}" for duty, deadline in sorted(regime.deadlines.items())]
    return notes + [f"{name} could not be read: {reason}" for name, reason in sorted(missing.items())]


def format_moment(moment: float) -> str:
    """A moment as people write it."""
    return datetime.fromtimestamp(moment, UTC).isoformat()


def _format_counts(words: Mapping[str, str], controls: Sequence[ControlJudgement]) -> str:
    return ", ".join(f"{words[status]}: {sum(control.status == status for control in controls)}" for status in STATUSES)


def _format_control_name(control: ControlJudgement, language: str) -> str:
    return f"{control.id} {control.title[language]}"
