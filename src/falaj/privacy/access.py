"""Access and portability: everything the platform holds of one person, and of nobody else, as an answer they can read.

The platform searches all that is kept, with its own authority (`privacy disclose`); whoever carries the request out
needs no right to read the data. The answer is a letter in Arabic and English (HTML that prints), the data as CSV and
JSON, a manifest, its signature, and the proof that the log holds the event of signing. What is missing is named with
its reason. Nothing is left behind when it fails.
"""

import csv
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.documents import IssuingOrganisation, render_document
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.privacy.answer_letter import AnsweredSource, AnswerFacts, KeepingLaw, build_letter
from falaj.privacy.person_search import DisclosedSource, DisclosurePage
from falaj.privacy.records import ACCESS, LANGUAGES, PORTABILITY, ConsentRecord, SignedDigest, SubjectRequest
from falaj.privacy.service_base import compute_digest
from falaj.store.codec import to_plain

ANSWER_FORMAT = "falaj-answer/1"
SIGNATURE_FIELDS = ("digest", "signature", "key", "event")  # the proof has a file of its own


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """What was written for a person."""

    COLUMNS: ClassVar = ("request", "folder", "files", "rows", "complete", "unsearched")

    request: Ref
    folder: str
    files: int
    rows: int
    complete: bool
    """True when everything was searched and may be told."""
    unsearched: tuple[str, ...]
    """What is missing, and why."""
    manifest: str
    """The digest that was signed: falaj privacy answer --answer takes it."""


@client_command
def access(
    client: Client,
    request: Annotated[Ref, "which request, of type access or portability"],
    subject: Annotated[str, "who, by the identifier that the data carries; compared with the request's pseudonym"],
    out: Annotated[str, "a new folder for the answer"],
) -> WrittenAnswer:
    """Write everything that is held of a person into a folder: a letter in Arabic and English, CSV, JSON, a signature.

    All versions, formats and purposes are searched, and nothing of anybody else is in it. The dpo and data stewards may
    run it without a right to read the data: the platform reads, for this one person, and records it.

    Example:
        falaj privacy access subject-request:privacy/0199d2f0 784-1990-1234567-1 --out answer
    """
    subject_request: SubjectRequest = client.privacy.request(request)
    if subject_request.type not in (ACCESS, PORTABILITY):
        hint = "access and portability are answered so"
        raise Invalid(f"{request} asks for {subject_request.type}", hint, request)
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise Invalid(f"{folder.name} is not empty", "name a new folder")
    draft = folder.with_name(f".{folder.name}.{request.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        (draft / "data").mkdir(mode=0o700, parents=True)
        draft.chmod(0o700)
        answer = _write_answer(client, subject_request, subject, draft)
        if folder.exists():
            folder.rmdir()
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return replace(answer, folder=str(folder))


def _write_answer(client: Client, request: SubjectRequest, subject: str, folder: Path) -> WrittenAnswer:
    disclosed = _collect_sources(client, request.ref, subject)
    sources = tuple(_write_held_source(client, source, folder) for source in disclosed.values() if source.rows)
    missing = tuple(
        (source.ref, source.reason or "it holds more records than an answer carries; the others are missing")
        for source in disclosed.values()
        if source.reason or source.is_cut
    )
    facts = AnswerFacts(
        request,
        subject,
        time.time(),
        sources,
        missing,
        _list_consents(client, subject),
        {purpose.name: purpose for purpose in client.privacy.purposes()},
        _list_active_grants(client),
        _find_law_titles(client, request, sources),
        _read_organisation(client),
    )
    for language in LANGUAGES:
        (folder / f"answer.{language}.html").write_text(render_document(build_letter(facts, language)), "utf-8")
    _write_json(folder / "data.json", {source.ref: source.rows for source in sources})
    _write_json(folder / "answer.json", _build_plain_answer(facts))
    return _sign_answer(client, facts, folder)


def _collect_sources(client: Client, request: Ref, subject: str) -> dict[str, DisclosedSource]:
    """Every source that holds something of the person, or that is missing; one that came in pieces is joined."""
    sources: dict[str, DisclosedSource] = {}
    after = ""
    with client.progress.task("searching what is kept", unit="sources") as task:
        while True:
            page: DisclosurePage = client.privacy.disclose(request, subject, after)
            for source in page.sources:
                earlier_piece = sources.get(source.ref)
                joined_source = (
                    replace(source, rows=(*earlier_piece.rows, *source.rows)) if earlier_piece is not None else source
                )
                sources[source.ref] = joined_source
            task.advance(page.searched)
            after = page.next
            if not after:
                return sources


def _write_held_source(client: Client, source: DisclosedSource, folder: Path) -> AnsweredSource:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.ref)[:120].strip("-.")
    file_name = next(
        f"data/{candidate_name}.csv"
        for candidate_name in _generate_file_names(name)
        if not (folder / f"data/{candidate_name}.csv").exists()
    )
    columns = list(dict.fromkeys(column for row in source.rows for column in row))
    with (folder / file_name).open(
        "w", encoding="utf-8-sig", newline=""
    ) as target:  # spreadsheets take it for UTF-8 so
        writer = csv.DictWriter(target, columns, restval="")
        writer.writeheader()
        writer.writerows({column: _format_csv_cell(value) for column, value in row.items()} for row in source.rows)
    origin = source.origin
    duties = tuple(KeepingLaw(duty.law if duty.law in source.regimes else "", duty.until) for duty in source.duties)
    return AnsweredSource(
        source.ref,
        source.rows,
        file_name,
        source.zone,
        _find_countries(client, source.zone),
        source.purposes,
        source.regimes,
        source.keep_until,
        duties,
        origin.made_at,
        origin.made_from,
        origin.meanings,
        origin.readers,
        origin.reads,
    )


def _generate_file_names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in range(2, 1_000_000))


def _format_csv_cell(value: object) -> str:
    """A value as a spreadsheet gets it; a text that it would run as a formula is quoted."""
    text = (
        "" if value is None else json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    )
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9][0-9 .,:/-]*", text) is not None


def _find_countries(client: Client, zone: str) -> str:
    jurisdiction_by_zone = {zone_item.id: zone_item.jurisdiction for zone_item in client.zones.list()}
    return ", ".join(
        dict.fromkeys(jurisdiction_by_zone.get(name.strip(), name.strip()) for name in zone.split(",") if name.strip())
    )


def _list_consents(client: Client, subject: str) -> tuple[ConsentRecord, ...]:
    consents: list[ConsentRecord] = []
    after = ""
    while True:
        page = client.privacy.consents(subject=subject, after=after)
        consents += page.items
        after = page.next
        if not after:
            return tuple(consents)


def _list_active_grants(client: Client) -> tuple[Any, ...]:
    """Transfers that were allowed and stand."""
    with suppress(Denied):
        return tuple(state for state in client.zones.grants() if state.state == "active")
    return ()


def _find_law_titles(client: Client, request: SubjectRequest, sources: tuple[AnsweredSource, ...]) -> dict[str, str]:
    titles = {regime.id: regime.title for regime in client.zones.regimes()}
    names = {clock.regime for clock in request.clocks} | {regime for source in sources for regime in source.regimes}
    return {name: titles.get(name, "") for name in sorted(names - {"NONE"})}


def _read_organisation(client: Client) -> IssuingOrganisation:
    with suppress(AttributeError, NotFound):
        organisation: IssuingOrganisation = client.privacy.organisation()
        return organisation
    return IssuingOrganisation()


def _build_plain_answer(facts: AnswerFacts) -> dict[str, Any]:
    """The answer for programs: everything that the letter says, but for the rows themselves."""
    sources_by_ref = {source.ref: {**to_plain(source), "rows": len(source.rows)} for source in facts.sources}
    return {
        "format": ANSWER_FORMAT,
        "request": str(facts.request.ref),
        "type": facts.request.type,
        "received": facts.request.received,
        "due": facts.request.due,
        "answered": facts.answered_at,
        "complete": not facts.missing,
        "held": sources_by_ref,
        "missing": [{"ref": ref, "reason": reason} for ref, reason in facts.missing],
        "consents": to_plain(facts.consents),
        "purposes": to_plain(tuple(facts.purposes.values())),
        "grants": to_plain(facts.grants),
        "laws": dict(facts.laws),
        "says": "What this platform holds by this identifier. No legal opinion.",
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(to_plain(value), ensure_ascii=False, indent=1, default=str), "utf-8")


def _sign_answer(client: Client, facts: AnswerFacts, folder: Path) -> WrittenAnswer:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): compute_digest(path.read_bytes()) for path in paths}
    manifest = json.dumps({"request": str(facts.request.ref), "files": files}, sort_keys=True, indent=1)
    (folder / "manifest.json").write_text(manifest)
    digest = compute_digest(manifest.encode())
    signature: SignedDigest = client.privacy.sign(facts.request.ref, digest)
    _write_json(folder / "signature.json", {name: getattr(signature, name) for name in SIGNATURE_FIELDS})
    _write_json(folder / "proof.json", signature.proof)
    rows = sum(len(source.rows) for source in facts.sources)
    missing = tuple(f"{ref}: {reason}" for ref, reason in facts.missing)
    return WrittenAnswer(facts.request.ref, str(folder), len(files) + 3, rows, not missing, missing, digest)
