"""Client commands that write printable documents: impact assessments, and notices and letters about a breach."""

import time
from pathlib import Path
from typing import Annotated, ClassVar

from falaj.catalog.records import Version
from falaj.core.data import dataclass
from falaj.core.documents import Document, render_document
from falaj.core.errand import Here, errand
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.label import CLASS_NAMES
from falaj.core.ref import Ref
from falaj.privacy.assessment_document import build_assessment_document
from falaj.privacy.breach_documents import (
    TEXTS,
    BreachFacts,
    ConcernedData,
    authority_clocks,
    build_authority_notice,
    build_people_letter,
)
from falaj.privacy.records import LANGUAGES, Assessment, Breach
from falaj.privacy.tables import people_in

_NOTHING: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Printed:
    """The documents that were written."""

    COLUMNS: ClassVar = ("about", "folder", "files")

    about: str
    folder: str
    files: tuple[str, ...]


@errand
def print_assessment(
    here: Here,
    dpia: Annotated[Ref, "which assessment; its newest version when none is given"],
    out: Annotated[str, "a folder for dpia.ar.html and dpia.en.html"],
) -> Printed:
    """Write an impact assessment as print-ready documents in Arabic and English, with its risk matrix.

    Example:
        falaj privacy print-assessment dpia:fraud/scoring --out papers
    """
    versions = [each for each in here.privacy.assessments(project=dpia.project) if each.ref.bare == dpia.bare]
    chosen = [each for each in versions if not dpia.version or each.ref == dpia]
    if not chosen:
        raise NotFound(f"{dpia} does not exist", "falaj privacy assessments lists them", dpia)
    newest: Assessment = max(chosen, key=lambda each: int(each.ref.version[1:]))
    organisation = here.privacy.organisation()
    documents = {
        f"dpia.{language}.html": build_assessment_document(newest, organisation, language) for language in LANGUAGES
    }
    return _write_documents(str(newest.ref), out, documents)


@errand
def letters(
    here: Here,
    breach: Annotated[Ref, "which breach"],
    out: Annotated[str, "a folder for the notices and letters"],
    words: Annotated[
        dict[str, str],
        "what you write, by language: nature.ar=…, consequences.en=…, measures, advice, people (categories), delay",
    ] = _NOTHING,
) -> Printed:
    """Write the notice of a breach to each authority, and the letter to the people concerned, in Arabic and English.

    What is not written is taken from the record, or marked to be completed. Nothing is sent.

    Example:
        falaj privacy letters breach:privacy/0199d2f0 --out papers --words nature.ar="…" --words nature.en="…"
    """
    expected = {f"{name}.{language}" for name in TEXTS for language in LANGUAGES}
    if unknown := sorted(set(words) - expected):
        raise Invalid(f"--words {', '.join(unknown)[:200]}: expected one of {', '.join(sorted(expected))}")
    recorded: Breach = here.privacy.breach(breach)
    regimes = {regime.id: regime for regime in here.zones.regimes()}
    organisation, documents = here.privacy.organisation(), dict[str, Document]()
    people = tuple(dict.fromkeys(defined.about for _, defined in people_in(here) if defined.about))
    data = tuple(_describe_data(here, ref) for ref in recorded.about)
    facts_of = BreachFacts(data, people, words, time.time())
    for language in LANGUAGES:
        documents[f"people.{language}.html"] = build_people_letter(recorded, organisation, words, language)
        for clock in authority_clocks(recorded):
            name = f"authority.{clock.regime.lower()}.{language}.html"
            regime = regimes[clock.regime]
            documents[name] = build_authority_notice(recorded, regime, organisation, facts_of, language)
    return _write_documents(str(recorded.ref), out, documents)


def _describe_data(here: Here, ref: Ref) -> ConcernedData:
    """Return how many records a thing has, its class and categories; only its name where it is no version of data."""
    try:
        version: Version = here.catalog.show(ref)
    except (Denied, Invalid, NotFound):
        return ConcernedData(str(ref))
    columns = version.table.columns if version.table else ()
    categories = version.label.categories | {column.category for column in columns if column.category}
    rows = (version.table.rows or 0) if version.table else 0
    return ConcernedData(str(ref), rows, CLASS_NAMES[version.label.classification], tuple(sorted(categories)))


def _write_documents(about: str, out: str, documents: dict[str, Document]) -> Printed:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        (folder / name).write_text(render_document(document), encoding="utf-8")
    return Printed(about, out, tuple(sorted(documents)))
