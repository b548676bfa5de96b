"""The summary people read, in Arabic and English: what is there, what is absent, what is not verified."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import Path

from falaj.comply.records import ABSENT, NOT_APPLICABLE, PRESENT, ControlMap, Judged
from falaj.govern.records import Regime

MARKS = {PRESENT: "✔", ABSENT: "✘ ABSENT", NOT_APPLICABLE: "-"}
FILE = Path(__file__).with_name("words.toml")
_STYLE = (
    "body{font:16px/1.6 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;"
    "width:100%}td,th{border:1px solid #999;padding:.3em .6em;vertical-align:top;text-align:start}"
    ".absent{background:#b00020;color:#fff;font-weight:bold}.not{border:3px solid #b00020;padding:1em}"
)


@cache
def words_of(language: str) -> dict[str, str]:
    """What is said in one language."""
    found: dict[str, str] = tomllib.loads(FILE.read_text(encoding="utf-8"))[language]
    return found


@cache
def _phrases() -> tuple[tuple[str, str], ...]:
    """English and Arabic, the longest first, so that no phrase is torn apart by a shorter one."""
    found: dict[str, str] = tomllib.loads(FILE.read_text(encoding="utf-8"))["phrases"]
    return tuple(sorted(found.items(), key=lambda pair: -len(pair[0])))


def said(reason: str, language: str) -> str:
    """A reason in a language. Reasons are made of few phrases, so these are looked up and no text is written twice."""
    if language != "ar":
        return reason
    marked = reason
    for at, (english, _) in enumerate(_phrases()):
        start = r"(?<![\w-])" if english[0].isalnum() else ""
        marked = re.sub(rf"{start}{re.escape(english)}(?![\w-])", f"\0{at}\0", marked)
    return re.sub("\0(\\d+)\0", lambda found: _phrases()[int(found[1])][1], marked)


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
        f"- **{_name(one, language)}**: {said(one.reason, language)}" for one in controls if one.status == ABSENT
    ] or [f"- {words['none']}"]
    lines += ["", f"## {words['unverified']}", "", *(f"- {text}" for text in unverified)]
    lines += ["", f"## {words['controls']}", ""]
    for one in controls:
        lines.append(
            f"- {MARKS[one.status]} {_name(one, language)} [{words[one.status]}]: {said(one.reason, language)}"
        )
        if one.clauses:
            lines.append(f"  - {', '.join(one.clauses)}; {words['checked']}: {one.source} ({one.checked})")
        if one.not_covered:
            lines.append(f"  - {words['covered']}: {'; '.join(one.not_covered)}")
    return "\n".join(lines) + "\n"


def page(asked: ControlMap, facts: Mapping[str, str], controls: Sequence[Judged], unverified: Sequence[str]) -> str:
    """Both languages as one HTML page without anything from elsewhere; what is absent is red."""
    parts = [_half(language, asked, facts, controls, unverified) for language in ("ar", "en")]
    return (
        f'<!doctype html>\n<html lang="ar"><head><meta charset="utf-8"><title>{escape(asked.id)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{''.join(parts)}</body></html>\n"
    )


def unverified(asked: ControlMap, regime: Regime | None, missing: Mapping[str, str]) -> list[str]:
    """Everything a reader must not take for checked."""
    said = [f"{asked.id}, control map version {asked.version}: review by {asked.review_by}", *asked.notes]
    loose = sorted(one.control for one in asked.controls if one.checked != "primary")
    said.append(f"clauses not read in the primary text: {', '.join(loose) or 'none'}")
    if regime is not None:
        said.append(f"regime profile version {regime.version}: {regime.status}, checked {regime.checked}")
        said += regime.notes
        said += [f"deadline {name}: {timer.status}" for name, timer in sorted(regime.timers.items())]
    return said + [f"{name} could not be read: {why}" for name, why in sorted(missing.items())]


def day(at: float) -> str:
    """A moment as people write it."""
    return datetime.fromtimestamp(at, UTC).isoformat()


def _half(
    language: str, asked: ControlMap, facts: Mapping[str, str], controls: Sequence[Judged], unverified: Sequence[str]
) -> str:
    words, way = words_of(language), "rtl" if language == "ar" else "ltr"
    rows = "".join(
        f"<tr{' class=absent' if one.status == ABSENT else ''}><td>{escape(_name(one, language))}</td>"
        f"<td>{escape(words[one.status])}</td><td>{escape(said(one.reason, language))}</td>"
        f'<td dir="ltr">{escape(", ".join(one.clauses))} {escape(one.source)} {escape(one.checked)}</td></tr>\n'
        for one in controls
    )
    told = "".join(
        f'<li>{escape(words[name])}: <span dir="ltr">{escape(text)}</span></li>' for name, text in facts.items()
    )
    loose = "".join(f'<li dir="ltr">{escape(text)}</li>' for text in unverified)
    return (
        f'<section lang="{language}" dir="{way}"><h1>{escape(words["title"])}: {escape(asked.id)}</h1>'
        f'<p>{escape(asked.title[language])}</p><p class="not"><b>{escape(words["not"])}</b></p>'
        f"<p>{escape(words['who'])}</p><p>{escape(words['state'])}</p><ul>{told}</ul>"
        f"<p>{escape(_counted(words, controls))}</p><table>{rows}</table>"
        f"<h2>{escape(words['unverified'])}</h2><ul>{loose}</ul></section>\n"
    )


def _counted(words: Mapping[str, str], controls: Sequence[Judged]) -> str:
    statuses = (PRESENT, ABSENT, NOT_APPLICABLE)
    return ", ".join(f"{words[status]}: {sum(one.status == status for one in controls)}" for status in statuses)


def _name(one: Judged, language: str) -> str:
    return f"{one.id} {one.title[language]}"
