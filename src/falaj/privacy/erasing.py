"""Erasing a person everywhere, and ending it in a certificate. Runs beside its caller and is made of verbs.

hold check -> restrict -> keys in every zone -> features -> journals -> caches -> decisions -> certificate. Nothing is
remembered here: each step is written into the request once it is done, and each does nothing more when it is done
again. So it may be killed anywhere: run again it goes on, and ends the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, cast

from falaj.audit.records import Impact
from falaj.catalog.records import Version
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.features.erasing import erase_from, holdings, open_case, views_of
from falaj.features.erasure import Erasure
from falaj.features.persons import kept_by_law, versions_of
from falaj.features.records import EntityDef
from falaj.features.rewriting import person_of
from falaj.features.stream import Arrival, dataset_of, quarantine_of
from falaj.privacy.records import Certificate, Request
from falaj.privacy.tables import clear_tables, datasets_of, keys_in, people_in
from falaj.serve.records import EndpointPage
from falaj.store.codec import to_json

Held = Mapping[Ref, Sequence[Arrival]]
"""Entities that may have somebody, with their views."""


@dataclass(frozen=True, slots=True)
class Erased:
    """How far an erasure is."""

    COLUMNS: ClassVar = ("request", "state", "steps", "held", "undecided")

    request: Ref
    state: str
    """done, waiting (for decisions) or held (the law keeps something: the person is restricted instead)."""
    steps: tuple[str, ...]
    held: tuple[str, ...]
    undecided: tuple[str, ...]
    certificate: str = ""
    """The digest of the statement."""

    @property
    def ok(self) -> bool:
        """True when there is a certificate."""
        return self.state == "done"


@errand
def erase(
    here: Here,
    request: Annotated[Ref, "which request, of type erasure"],
    subject: Annotated[str, "who, by the identifier that the data carries; compared with the request's pseudonym"],
    out: Annotated[str, "a folder for certificate.json and proof.json, once it is done"] = "",
) -> Erased:
    """Erase a person: keys, features, training sets, journals; then decisions about models; then the certificate.

    Where a legal hold or a retention period keeps something of them, nothing is destroyed: the person is restricted,
    and what stands against it is named. Run it again after a failure, a decision, or the end of a hold.

    Example:
        falaj privacy erase subject-request:privacy/0199d2f0 784-1990-1234567-1 --out certificate
    """
    asked: Request = here.privacy.request(request)
    if asked.person != here.privacy.pseudonym(subject):
        raise Denied("this is not the person who asked", "check the identifier, letter by letter", request)
    if asked.state != "open":
        _check_erased(asked)
        return _ended(asked, cast(Certificate, here.privacy.certify(request, subject)), out)
    if "restrict" not in asked.steps:
        here.privacy.restrict(subject, f"erasure asked for: {request}")
        asked = here.privacy.step(request, "restrict", "nothing reads what is kept of them")
    people = list(people_in(here))
    entities = dict(entities_of(here, subject, people))
    held = _held(here, entities, (subject, asked.person), people)
    if held or asked.held:
        asked = here.privacy.step(request, "holds", held=held)
    if held:
        return _told(asked, "held")
    before = set(asked.steps)
    asked = _destroy(here, asked, entities, subject, people)
    if any(not one.decision for one in asked.derived):
        return _told(asked, "waiting")
    if "journal" in before:
        _forget_journals(here, subject, request)  # what a gateway had not written yet when it was asked first
    certificate = cast(Certificate, here.privacy.certify(request, subject))
    return _ended(asked, certificate, out)


def _destroy(
    here: Here, asked: Request, entities: Held, subject: str, people: Sequence[tuple[Ref, EntityDef]]
) -> Request:
    """Every step that is not done yet, in order."""
    request, done, said = asked.ref, set(asked.steps), f"request {asked.ref.name}"
    if "keys" not in done:
        zones = here.privacy.shred(request, subject)
        asked = here.privacy.step(request, "keys", f"destroyed in {', '.join(zones)}")
    if "features" not in done:
        found = [erase_from(open_case(here, one, held, subject, said), held) for one, held in entities.items()]
        kept = {str(stays.ref): stays.why for one in found for stays in one.kept}
        models = {str(each.ref): _why(each.sure) for one in found for each in one.models}
        hidden = sum(one.hidden for one in found)
        if hidden:
            raise Denied(f"{hidden} things about them may not be seen by you", "have somebody erase who may", request)
        asked = here.privacy.step(request, "features", _said(found), derived={**kept, **models})
    if "tables" not in done:
        tables = clear_tables(here, keys_in(people), (subject, asked.person), said, set())
        kept = {str(ref): why for ref, why in tables.kept.items()}
        models = {str(ref): _why(False) for ref in tables.models}
        told = f"{len(tables.removed)} versions removed, {len(tables.made)} made without them"
        asked = here.privacy.step(request, "tables", told, derived={**models, **kept})
    if "journal" not in done:
        gone = _forget_journals(here, subject, request)
        asked = here.privacy.step(request, "journal", f"{gone} requests and labels removed")
    if "caches" not in done:
        told = "samples of reads and rows online went with the features; bytes leave the store with the next collection"
        asked = here.privacy.step(request, "caches", told)
    return asked


def _held(here: Here, entities: Held, who: tuple[str, str], people: Sequence[tuple[Ref, EntityDef]]) -> tuple[str, ...]:
    """What the law keeps of the person. Rows are looked at only where a label says that something is kept at all."""
    found = set()
    for entity, arrivals in entities.items():
        names = {dataset_of(one.stream, face) for one in arrivals for face in one.labels}
        names |= {quarantine_of(one.stream) for one in arrivals}
        rows = [version for name in names for version in versions_of(here, name)]
        made = {ref for version in rows for ref in _made_from(here, version.ref)}
        if kept_by_law(here, [one.ref for one in (*rows, *(_shown(here, ref) for ref in made)) if one]):
            report = erase_from(open_case(here, entity, arrivals, who[0], "", dry=True), arrivals)
            found |= {one.why for one in kept_by_law(here, [each.ref for each in report.kept]).values()}
    tables = [one.ref for one in datasets_of(here)]
    if kept := {ref.bare for ref in kept_by_law(here, tables)}:
        free = {ref.bare for ref in tables} - kept
        told = clear_tables(here, keys_in(people), who, "", free, dry=True)
        found |= {one.why for one in kept_by_law(here, list(told.kept)).values()}
    return tuple(sorted(found))


def _made_from(here: Here, ref: Ref) -> list[Ref]:
    with suppress(NotFound):
        impact: Impact = here.audit.impact(ref)
        return [one for one in map(Ref.parse, impact.affected) if one.kind == "dataset"]
    return []


def _shown(here: Here, ref: Ref) -> Version | None:
    with suppress(NotFound):
        found: Version = here.catalog.show(ref)
        return found if found.state == "live" else None
    return None


def entities_of(
    here: Here, subject: str, people: Iterable[tuple[Ref, EntityDef]]
) -> Iterator[tuple[Ref, list[Arrival]]]:
    """Every entity that is about people, has views, and could have this one; with those views."""
    views = views_of(here)
    for ref, defined in people:
        with suppress(Invalid):  # their keys are of another type than this identifier
            person_of(defined, subject)
            if held := holdings(here, ref, views):
                yield ref, held


def _forget_journals(here: Here, subject: str, request: Ref) -> int:
    gone = 0
    for endpoint in endpoints_of(here):
        gone += here.serve.forget(endpoint, (subject,), f"request {request.name}")
    return gone


def endpoints_of(here: Here) -> Iterator[Ref]:
    """Every endpoint the caller may see."""
    after = ""
    while True:
        page: EndpointPage = here.serve.list(after=after)
        yield from (one.ref for one in page.endpoints)
        after = page.next
        if not after:
            return


def _check_erased(asked: Request) -> None:
    if asked.type != "erasure" or asked.state == "refused":
        raise Conflict(
            f"{asked.ref} asks for {asked.type} and is {asked.state}", "there is nothing to erase", asked.ref
        )


def _ended(asked: Request, certificate: Certificate, out: str) -> Erased:
    if out:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "certificate.json").write_bytes(to_json(certificate))
        (folder / "proof.json").write_bytes(to_json(certificate.proof))
    return _told(asked, "done", certificate.digest)


def _told(asked: Request, state: str, digest: str = "") -> Erased:
    undecided = tuple(one.ref for one in asked.derived if not one.decision)
    return Erased(asked.ref, state, tuple(asked.steps), asked.held, undecided, digest)


def _said(found: list[Erasure]) -> str:
    removed, made = sum(len(one.removed) for one in found), sum(len(one.made) for one in found)
    views = sum(len(one.views) for one in found)
    return f"out of {views} views; {removed} versions removed, {made} made without them"


def _why(sure: bool) -> str:
    return "it learned from rows of theirs" if sure else "it may have learned from rows of theirs"
