"""The letter that answers a person's request for their data, as a document in one language. Pure.

The wording is in `answer_words.toml`; what is rendered and signed is the business of `access.py`.
"""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from falaj.core.data import dataclass
from falaj.core.documents import (
    BulletList,
    Document,
    KeyValues,
    Organisation,
    Paragraph,
    Person,
    Section,
    Signatures,
    Table,
    describe_date,
    describe_duration,
)
from falaj.core.documents.records import Block
from falaj.govern.records import GrantState
from falaj.privacy.document_words import name_law
from falaj.privacy.records import PORTABILITY, Consent, Purpose, Request

MAX_SHOWN_ROWS = 50  # rows of one source that the letter prints; the files have all
MAX_SHOWN_COLUMNS = 6  # a wider source is printed record by record
MAX_SHOWN_RECORDS = 10
MAX_VALUE = 300  # characters of one value that the letter prints
_KINDS = frozenset({"dataset", "model", "view", "endpoint", "trace", "run"})
RECORD = "record "
_PREFIXES = {RECORD: "description", "log of ": "log", "samples of ": "samples", "event ": "event"}
DAY_S = 86_400.0
Say = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class KeepingLaw:
    """A law that keeps a source at least until a moment."""

    law: str
    """A regime; empty for a hold or an investigation, which is not told to the person: it may be about them."""
    until: float
    """0 while it has no date."""


@dataclass(frozen=True, slots=True)
class HeldSource:
    """What one source holds of the person, with what is known of it."""

    ref: str
    rows: tuple[Mapping[str, Any], ...]
    file: str
    zone: str = ""
    country: str = ""
    purposes: tuple[str, ...] = ()
    regimes: tuple[str, ...] = ()
    keep_until: float = 0.0
    duties: tuple[KeepingLaw, ...] = ()
    made_at: float = 0.0
    made_from: tuple[str, ...] = ()
    meanings: Mapping[str, str] | None = None
    """Columns with what they were declared to mean."""
    readers: int = 0
    reads: int = 0


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Everything that the letter says."""

    request: Request
    subject: str
    answered_at: float
    sources: tuple[HeldSource, ...]
    missing: tuple[tuple[str, str], ...]
    """What the answer does not contain, and why."""
    consents: tuple[Consent, ...]
    purposes: Mapping[str, Purpose]
    grants: tuple[GrantState, ...]
    laws: Mapping[str, str]
    """The titles of the regimes that apply, by their ids."""
    organisation: Organisation


def build_letter(facts: AnswerFacts, language: str) -> Document:
    """Return the letter in a language."""
    words = _read_words()

    def say(word: str) -> str:
        return words[word][language]

    request = facts.request
    sections = (
        _about(facts, say, language), _held(facts, say, language), *_data(facts, say), _origin(facts, say, language),
        _purposes(facts, say, language), _recipients(facts, say, language), _consents(facts, say, language),
        _missing(facts, say), _build_remedies(facts, say, language),
        Section(say("check"), (Paragraph(say("check_text")),)),
        Section(say("signature"), (Signatures((Person(facts.organisation.officer_in(language), say("signer")),)),)),
    )  # fmt: skip
    zone = facts.organisation.timezone
    head = (
        (say("received"), describe_date(request.received, language, zone)),
        (say("due"), describe_date(request.due, language, zone)),
        (say("answered"), describe_date(facts.answered_at, language, zone)),
        (say("laws"), ", ".join(facts.laws) or say("no_law")),
    )
    return Document(
        language=language, organisation=facts.organisation,
        title=say("title_portability" if request.type == PORTABILITY else "title"),
        number=f"{request.type.upper()}-{request.ref.name[:12]}",
        sections=sections, facts=head, notice=say("notice"),
    )  # fmt: skip


@cache
def _read_words() -> Mapping[str, Mapping[str, str]]:
    tree = tomllib.loads(Path(__file__).with_name("answer_words.toml").read_text("utf-8"))
    return {name: texts for name, texts in tree.items() if isinstance(texts, dict)}


def _about(facts: AnswerFacts, say: Say, language: str) -> Section:
    state = Paragraph(say("incomplete"), "warning") if facts.missing else Paragraph(say("complete"), "good")
    pairs = [(say("identifier"), facts.subject), (say("reference"), str(facts.request.ref))]
    pairs += [(say("law"), f"{name_law(name, title, language)} ({name})") for name, title in facts.laws.items()]
    return Section(say("letter"), (Paragraph(say("letter_text")), state, KeyValues(tuple(pairs))))


def _held(facts: AnswerFacts, say: Say, language: str) -> Section:
    rows = tuple(
        (
            _name(source.ref, say), str(len(source.rows)), _place(source, say), ", ".join(source.purposes),
            _kept(source, facts, say, language),
        )
        for source in facts.sources
    )  # fmt: skip
    columns = tuple(map(say, ("what", "records", "place", "purposes_short", "retention")))
    return Section(say("held"), (Table(columns, rows, say("nothing"), compact=True),))


def _data(facts: AnswerFacts, say: Say) -> list[Section]:
    """The data itself, a section a source; texts in which records name the person come together in one."""
    sections = [
        Section(f"{say('data')}: {_name(source.ref, say)}", _rows_of(source, say))
        for source in facts.sources
        if not source.ref.startswith(RECORD)
    ]
    texts = tuple(
        (_name(source.ref.removeprefix(RECORD), say), str(row["field"]), _text(row["value"]))
        for source in facts.sources
        if source.ref.startswith(RECORD)
        for row in source.rows
    )
    if texts:
        table = Table(tuple(map(say, ("what", "column", "value"))), texts)
        sections.append(Section(f"{say('data')}: {say('descriptions')}", (table,)))
    return sections


def _rows_of(source: HeldSource, say: Say) -> tuple[Block, ...]:
    names = list(dict.fromkeys(name for row in source.rows for name in row))
    blocks: list[Block] = [KeyValues(((say("file"), source.file),))]
    meanings = tuple((name, text) for name in names if (text := (source.meanings or {}).get(name, "")))
    if meanings:
        blocks.append(Table((say("column"), say("meaning")), meanings))
    limit = MAX_SHOWN_ROWS if len(names) <= MAX_SHOWN_COLUMNS else MAX_SHOWN_RECORDS
    if len(names) <= MAX_SHOWN_COLUMNS:
        rows = tuple(tuple(_text(row.get(name)) for name in names) for row in source.rows[:limit])
        blocks.append(Table(tuple(names), rows))
    else:
        for number, row in enumerate(source.rows[:limit], 1):
            pairs = tuple((name, _text(row[name])) for name in names if row.get(name) is not None)
            blocks += [Paragraph(f"{say('record')} {number}"), KeyValues(pairs)]
    if len(source.rows) > limit:
        blocks.append(Paragraph(say("shown_first").format(count=limit, file=source.file), "muted"))
    return tuple(blocks)


def _origin(facts: AnswerFacts, say: Say, language: str) -> Section:
    def origin(source: HeldSource) -> str:
        day = describe_date(source.made_at, language, facts.organisation.timezone)
        entered = f"{say('supplied')} {day}" if source.made_at else ""
        made = (
            f"{say('made_from')} {', '.join(_name(ref, say) for ref in source.made_from)}" if source.made_from else ""
        )
        return "; ".join(filter(None, (made, entered))) or say("not_recorded")

    rows = tuple((_name(source.ref, say), origin(source)) for source in facts.sources if RECORD not in source.ref)
    return Section(say("origin"), (Table((say("what"), say("origin")), rows, say("nothing")),))


def _purposes(facts: AnswerFacts, say: Say, language: str) -> Section:
    named = sorted({purpose for source in facts.sources for purpose in source.purposes})
    rows = []
    for name in named:
        purpose = facts.purposes.get(name)
        if purpose is None:
            rows.append((name, say("unregistered"), "", ""))
        else:
            kept = describe_duration(purpose.retention_days * DAY_S, language)
            rows.append((name, _of_list("basis", purpose.basis, say), purpose.text.get(language, ""), kept))
    columns = tuple(map(say, ("purpose", "basis", "explained", "retention")))
    return Section(say("purposes"), (Table(columns, tuple(rows), say("no_purpose")),))


def _recipients(facts: AnswerFacts, say: Say, language: str) -> Section:
    rows = tuple(
        (_name(source.ref, say), str(source.readers), str(source.reads)) for source in facts.sources if source.reads
    )
    grants = tuple(
        (state.grant.src, state.grant.dst, ", ".join(state.grant.purposes),
         describe_date(state.grant.expires, language, facts.organisation.timezone))
        for state in facts.grants
    )  # fmt: skip
    reads = Table(tuple(map(say, ("what", "accounts", "times"))), rows, say("no_reads"))
    moves = Table(tuple(map(say, ("from", "to", "purpose", "until"))), grants, say("no_transfers"), say("transfers"))
    return Section(say("recipients"), (reads, moves))


def _consents(facts: AnswerFacts, say: Say, language: str) -> Section:
    zone = facts.organisation.timezone
    rows = tuple(
        (
            consent.purpose, say(f"consent_{consent.state}"), describe_date(consent.at, language, zone),
            describe_date(consent.withdrawn_at, language, zone),
        )
        for consent in facts.consents
    )  # fmt: skip
    columns = tuple(map(say, ("purpose", "state", "given_on", "withdrawn_on")))
    return Section(say("consents"), (Table(columns, rows, say("no_consents")),))


def _missing(facts: AnswerFacts, say: Say) -> Section:
    rows = tuple((_name(ref, say), reason) for ref, reason in facts.missing)
    table = Table((say("what"), say("reason")), rows, say("nothing_missing"))
    return Section(say("missing"), (table, Paragraph(say("outside"), "muted")))


def _build_remedies(facts: AnswerFacts, say: Say, language: str) -> Section:
    names = ("correct", "erase", "restrict", "withdraw", "portability", "complain")
    rights = BulletList(tuple(say(f"right_{name}") for name in names))
    organisation = facts.organisation
    name, contacts = organisation.officer_in(language), (organisation.officer_contact, organisation.email)
    contact = f"{say('comma')} ".join(filter(None, (name, *contacts)))
    officer = (KeyValues(((say("officer"), contact),)),) if contact else ()
    return Section(say("rights"), (rights, *officer))


def _name(ref: str, say: Say) -> str:
    """A source as people read it: its kind, its name, its version and its project."""
    for prefix, word in _PREFIXES.items():
        if ref.startswith(prefix):
            return f"{say(word)}: {_name(ref.removeprefix(prefix), say)}"
    kind, colon, rest = ref.partition(":")
    project, slash, name = rest.partition("/")
    if not (colon and slash):
        return ref
    name, _, version = name.partition("@")
    versioned = f"{say('comma')} {say('version')} {version}" if version else ""
    return f"{say(kind if kind in _KINDS else 'other')} {name}{versioned} ({say('project')} {project})"


def _kept(source: HeldSource, facts: AnswerFacts, say: Say, language: str) -> str:
    if source.duties:
        laws = f"{say('comma')} ".join(dict.fromkeys(duty.law or say("legal_duty") for duty in source.duties))
        if not all(duty.until for duty in source.duties):
            return f"{say('kept_open')} ({laws})"
        until = max(duty.until for duty in source.duties)
        return f"{say('kept_until')} {describe_date(until, language, facts.organisation.timezone)} ({laws})"
    if source.keep_until:
        return f"{say('kept_until')} {describe_date(source.keep_until, language, facts.organisation.timezone)}"
    known = [facts.purposes[name].retention_days for name in source.purposes if name in facts.purposes]
    return describe_duration(max(known) * DAY_S, language) if known else say("no_limit")


def _place(source: HeldSource, say: Say) -> str:
    names = (_of_list("place", code, say) for code in source.country.split(", ") if code)
    return ", ".join(names) or source.zone


def _of_list(kind: str, code: str, say: Say) -> str:
    """A code in words, or as it is where there are no words for it."""
    word = f"{kind}_{code}"
    return say(word) if word in _read_words() else code


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
