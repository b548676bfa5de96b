"""Erasing a person everywhere, and ending it in a certificate. Runs beside its caller and is made of verbs.

restrict -> plan (every object, and which duty keeps it) -> approval by a second person -> duties asked again -> keys in
every zone -> features -> tables -> journals -> decisions -> certificate. Where a duty keeps something, it is restricted
and retained, no key is destroyed, and the same command finishes it when the last duty has ended. Nothing is remembered
here: each step is written into the request once it is done, and each does nothing more when it is done again. So it may
be killed anywhere: run again it goes on, and ends the same.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, cast

from falaj.catalog.records import Version
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.features.erasing import erase_from, holdings, open_case, views_of
from falaj.features.erasure import Erasure
from falaj.features.persons import kept_by_law, keys_ref, remove
from falaj.features.records import EntityDef
from falaj.features.rewriting import person_of
from falaj.features.stream import Arrival, dataset_of
from falaj.privacy.plan_objects import has_texts, is_plain_record, job_of, version_of
from falaj.privacy.plan_records import DECIDE, DESTROY_KEY, ERASE, FORGET, PLANNED, RESTRICT, ErasurePlan, PlanItem
from falaj.privacy.planning import describe_retained
from falaj.privacy.records import OPEN, RETAINED, Certificate, Request
from falaj.privacy.row_removal import can_remove_rows, remove_rows
from falaj.privacy.searching import SearchPage
from falaj.privacy.tables import Cleared, clear_tables, keys_in, people_in
from falaj.serve.records import EndpointPage
from falaj.store.codec import to_json

Held = Mapping[Ref, Sequence[Arrival]]
"""Entities that may have somebody, with their views."""
_RECORD = "record "
_ALL_KEYS, _ALL_ANSWERS, _ANSWER = "keys:every-zone", "outcomes:every-zone", "outcome:"
_NEXT = {
    "waiting": "an approver or the dpo runs: falaj privacy decide {request} {thing} retrain|retire|accept --reason …",
    "found": "take the person out of what `matches` lists, or delete it, then: falaj privacy erase {request} WHO",
    "retained": "when falaj privacy retained --due lists it: falaj privacy erase {request} WHO",
}
"""The next command, by the state of an erasure."""


@dataclass(frozen=True, slots=True)
class Erased:
    """How far an erasure is."""

    COLUMNS: ClassVar = ("request", "state", "steps", "held", "undecided", "matches", "unread", "next")

    request: Ref
    state: str
    """planned (it waits for approval), waiting (for decisions), found (something still holds the person), retained
    (what is left is restricted under a duty, the rest is erased), partial (certified, but for what could not be
    searched) or done."""
    steps: tuple[str, ...]
    held: tuple[str, ...]
    """What is restricted and retained, until when, under which law."""
    undecided: tuple[str, ...]
    certificate: str = ""
    """The digest of the statement."""
    matches: tuple[str, ...] = ()
    """What still holds the person, and why it is said to: take them out of it, or delete it, and run this again."""
    unread: tuple[str, ...] = ()
    """What could not be searched, and why."""
    items: tuple[PlanItem, ...] = ()
    """The plan: every object, what happens to it, which duty keeps it."""
    next: str = ""
    """What somebody has to do now, as a command."""

    @property
    def ok(self) -> bool:
        """True when there is a certificate, be it partial."""
        return self.state in ("done", "partial")


@errand
def erase(
    here: Here,
    request: Annotated[Ref, "which request, of type erasure"],
    subject: Annotated[str, "who, by the identifier that the data carries; compared with the request's pseudonym"],
    out: Annotated[str, "a folder for certificate.json and proof.json, once it is done"] = "",
    plan: Annotated[bool, "only record and show what would happen to which object, and ask for approval"] = False,
) -> Erased:
    """Erase a person by a plan that a second person approves: keys, features, tables, journals; then the certificate.

    What a law, a legal hold or a contract keeps is restricted, so that nobody reads it, and named with the date; all
    else is erased. Run it again after an approval, a failure, a decision, or the end of a duty.

    Example:
        falaj privacy erase subject-request:privacy/0199d2f0 784-1990-1234567-1 --plan
    """
    asked: Request = here.privacy.request(request)
    if asked.person != here.privacy.pseudonym(subject):
        raise Denied("this is not the person who asked", "check the identifier, letter by letter", request)
    if asked.state not in (OPEN, RETAINED):
        _check_erased(asked)
        return _ended(asked, cast(Certificate, here.privacy.certify(request, subject)), out)
    if "restrict" not in asked.steps:
        here.privacy.restrict(subject, f"erasure asked for: {request}")
        asked = here.privacy.step(request, "restrict", "reads online, catalog reads and jobs refuse what has them")
    people = list(people_in(here))
    entities = dict(entities_of(here, subject, people))
    planned = _ensure_plan(here, asked, (entities, people), subject)
    if plan or planned.state == PLANNED:
        return _planned(asked, planned)
    if asked.state == RETAINED and not planned.due:
        return replace(_told(asked, "retained"), items=planned.items)
    asked = here.privacy.start_erasure(request, subject)
    before = set(asked.steps)
    _destroy(here, asked, entities, subject, people)
    _remove_found_rows(here, asked, subject)
    retained = _settle_versions(here, asked)
    _delete_job_files(here, asked, subject)
    page = _search_and_redact(here, request, subject, retained)
    asked = here.privacy.request(request)
    page = replace(page, matches=tuple(match for match in page.matches if _source_of(match.ref) not in retained))
    if any(not derived.decision and derived.ref not in retained for derived in asked.derived):
        return _told(asked, "waiting", page=page)
    if page.matches:
        added = _plan_unnamed(here, asked, page)
        return _planned(asked, added) if added is not None else _told(asked, "found", page=page)
    if "journal" in before:
        _forget_journals(here, subject, request)  # what a gateway had not written yet when it was asked first
    if retained:
        return _told(here.privacy.retain(request, subject), "retained")
    certificate = cast(Certificate, here.privacy.certify(request, subject))
    return _ended(asked, certificate, out)


def _note_tables(here: Here, request: Ref, tables: Cleared, before: str = "") -> None:
    kept = {str(ref): why for ref, why in tables.kept.items() if ref not in tables.retained}
    models = {str(ref): _why(False) for ref in tables.models}
    text = f"{len(tables.removed)} versions removed, {len(tables.made)} made without them"
    text = f"{before}; {text}"[-1000:] if before else text
    here.privacy.step(request, "tables", text, derived={**models, **kept})


def _remove_found_rows(here: Here, asked: Request, subject: str) -> None:
    """Take rows out of planned tables, in every run: an earlier caller may have had no right to read them."""
    plan: ErasurePlan = here.privacy.plan(asked.ref)
    names = [item.ref for item in plan.items if item.action in (ERASE, RESTRICT) and not item.sealed]
    tables = remove_rows(here, names, (subject, asked.person), f"request {asked.ref.name}")
    if tables.removed or tables.kept:
        current: Request = here.privacy.request(asked.ref)
        _note_tables(here, asked.ref, tables, current.steps.get("tables", ""))


def _search_and_redact(here: Here, request: Ref, subject: str, retained: set[str]) -> SearchPage:
    """Search, replace the identifier in the texts of records that the plan is about, and search again if there were."""
    page = _search(here, request, subject)
    plan: ErasurePlan = here.privacy.plan(request)
    planned = {_name_of(item) for item in plan.items}
    names = [match.ref.removeprefix(_RECORD) for match in page.matches if match.ref.startswith(_RECORD)]
    count = 0
    for name in names:
        if name not in retained and has_texts(name) and name.partition("@")[0] in planned:
            count += here.privacy.redact_record(request, subject, name)
    return _search(here, request, subject) if count else page


def _ensure_plan(
    here: Here, asked: Request, where: tuple[Held, Sequence[tuple[Ref, EntityDef]]], subject: str
) -> ErasurePlan:
    """The plan that is recorded, unless something came that it does not name: then the plan of all, to approve anew."""
    recorded: ErasurePlan | None = None
    with suppress(NotFound):
        recorded = here.privacy.plan(asked.ref)
    items = find_items(here, where[0], (subject, asked.person), where[1])
    if recorded is None:
        return cast(ErasurePlan, here.privacy.record_plan(asked.ref, _with_matches(here, asked.ref, subject, items)))
    names = {_name_of(item) for item in recorded.items}
    # A table that cannot be rewritten by its columns is in the plan only where the search finds the person in it.
    if {_name_of(item) for item in items if item.action != DECIDE or not item.ref.startswith("dataset:")} <= names:
        return recorded
    joined = {item.ref: item for item in (*recorded.items, *items)}
    return cast(ErasurePlan, here.privacy.record_plan(asked.ref, tuple(joined.values())))


def _plan_unnamed(here: Here, asked: Request, page: SearchPage) -> ErasurePlan | None:
    """A new plan, where the search found the person in something that the plan does not name, and that a duty keeps or
    that only a plan can delete: logs and files of jobs."""
    recorded: ErasurePlan = here.privacy.plan(asked.ref)
    names = {item.ref for item in recorded.items}
    added = [item for item in found_items(here, page) if item.ref not in names]
    checked = here.privacy.check_items(asked.ref, tuple(added))
    planned = {item.ref for item in checked if item.action == RESTRICT or job_of(item.ref) is not None}
    if not planned:
        return None
    items = (*recorded.items, *(item for item in added if item.ref in planned))
    return cast(ErasurePlan, here.privacy.record_plan(asked.ref, items))


def _with_matches(here: Here, request: Ref, subject: str, items: Sequence[PlanItem]) -> tuple[PlanItem, ...]:
    """Add what only a search of all bytes finds, and leave out tables that it calls clear."""
    page = _search(here, request, subject)
    by_ref = {item.ref: item for item in found_items(here, page)}
    listed = {*by_ref, *(source.ref for source in page.unread)}
    for item in items:
        is_table = item.action == DECIDE and item.ref.startswith("dataset:")
        is_clear = is_table and item.ref not in listed and not page.unlisted
        if not is_clear and (item.action != DECIDE or item.ref not in by_ref):
            by_ref[item.ref] = item
    return tuple(by_ref.values())


def found_items(here: Here, page: SearchPage) -> list[PlanItem]:
    """List the matches of a search as objects of a plan; `record_plan` restricts those that a duty keeps."""
    reasons = {_source_of(match.ref): match.reason for match in reversed(page.matches)}
    files = {match.ref for match in page.matches if not match.ref.startswith(_RECORD)}
    answers = [name for name in reasons if name.startswith(_ANSWER)]
    items = [
        PlanItem(name, ERASE if _can_erase(here, name, in_files=name in files) else DECIDE, reason=reason)
        for name, reason in reasons.items()
        if name not in answers
    ]
    reason = "answers that were kept for repeated requests"
    models = _find_models(here, [item.ref for item in items])
    learned = [PlanItem(str(model), DECIDE, reason=_why(False)) for model in models if str(model) not in reasons]
    return [*items, *learned, *([PlanItem(_ALL_ANSWERS, FORGET, reason=reason)] if answers else [])]


def _can_erase(here: Here, name: str, *, in_files: bool) -> bool:
    if job_of(name) is not None:
        return True
    return can_remove_rows(here, name) if in_files else has_texts(name)


def _find_models(here: Here, names: Sequence[str]) -> list[Ref]:
    """Models made from these datasets, at any distance, where no duty keeps the dataset."""
    refs = [ref for name in names if (ref := version_of(name)) is not None and ref.kind == "dataset"]
    kept = kept_by_law(here, refs)
    affected = {text for ref in refs if ref not in kept for text in here.audit.impact(ref).affected}
    return sorted(ref for text in affected if (ref := Ref.parse(text)).kind == "model")


def _source_of(match: str) -> str:
    """The version that a match is about; what its record says is restricted and deleted with it."""
    return match.removeprefix(_RECORD)


def _settle_versions(here: Here, asked: Request) -> set[str]:
    """Restrict everything that a duty keeps, and let go of what none keeps any more; name all that is retained."""
    plan: ErasurePlan = here.privacy.plan(asked.ref)
    reason = f"erased {asked.person}: request {asked.ref.name}"
    for item in plan.items:
        ref = None if item.sealed else version_of(item.ref)
        if item.action in (RESTRICT, ERASE) and is_plain_record(item.ref):
            here.privacy.settle_record(asked.ref, item.ref)
        if ref is not None and item.action == RESTRICT:
            here.catalog.restrict(ref, reason, erasure=asked.person)
        elif ref is not None and item.action == ERASE and _is_restricted(here, ref):
            remove(here, ref, reason)
    return {item.ref for item in plan.items if item.action == RESTRICT}


def _delete_job_files(here: Here, asked: Request, subject: str) -> None:
    """Delete folders of ended attempts and checkpoints that the plan names; those of running ones stay listed."""
    plan: ErasurePlan = here.privacy.plan(asked.ref)
    for item in plan.items:
        if item.action == ERASE and job_of(item.ref) is not None:
            here.privacy.delete_job_files(asked.ref, subject, item.ref)


def _is_restricted(here: Here, ref: Ref) -> bool:
    with suppress(NotFound):
        version: Version = here.catalog.show(ref)
        return version.state == "live" and version.restricted
    return False


def _name_of(item: PlanItem) -> str:
    return item.ref.partition("@")[0]


def _destroy(
    here: Here, asked: Request, entities: Held, subject: str, people: Sequence[tuple[Ref, EntityDef]]
) -> Request:
    """Every step that is not done yet, in order."""
    request, done, said = asked.ref, set(asked.steps), f"request {asked.ref.name}"
    if "keys" not in done and not asked.held:
        zones = here.privacy.shred(request, subject)
        asked = here.privacy.step(request, "keys", f"destroyed in {', '.join(zones)}")
    if "features" not in done:
        found = [
            erase_from(open_case(here, entity, held, subject, said, request=request), held)
            for entity, held in entities.items()
        ]
        kept = {str(stays.ref): stays.why for one in found for stays in one.kept if not stays.duties}
        models = {str(each.ref): _why(each.sure) for one in found for each in one.models}
        hidden = sum(one.hidden for one in found)
        if hidden:
            raise Denied(f"{hidden} things about them may not be seen by you", "have somebody erase who may", request)
        asked = here.privacy.step(request, "features", _said(found), derived={**kept, **models})
    if "tables" not in done:
        tables = clear_tables(here, keys_in(people), (subject, asked.person), said, set())
        _note_tables(here, request, tables)
    if "journal" not in done:
        gone = _forget_journals(here, subject, request)
        asked = here.privacy.step(request, "journal", f"{gone} requests and labels removed")
    if "caches" not in done:
        told = "samples of reads and rows online went with the features; bytes leave the store with the next collection"
        asked = here.privacy.step(request, "caches", told)
    return asked


def _search(here: Here, request: Ref, subject: str) -> SearchPage:
    """Search everything that is kept for the person, call by call."""
    with here.progress.task("searching what is kept", unit="sources") as task:
        page: SearchPage = here.privacy.search(request, subject)
        count = page.searched
        task.advance(count)
        while page.next:
            page = here.privacy.search(request, subject, page.next)
            task.advance(page.searched - count)
            count = page.searched
    return page


def find_items(
    here: Here, entities: Held, who: tuple[str, str], people: Sequence[tuple[Ref, EntityDef]]
) -> list[PlanItem]:
    """Look for everything that has the person, and say what an erasure does with each object. Destroys nothing."""
    subject, reports = who[0], list[Erasure]()
    for entity, arrivals in entities.items():
        reports.append(erase_from(open_case(here, entity, arrivals, subject, "", dry=True), arrivals))
    if hidden := sum(report.hidden for report in reports):
        raise Denied(f"{hidden} things about them may not be seen by you", "have somebody plan it who may")
    tables = clear_tables(here, keys_in(people), who, "", set(), dry=True)
    removed = {*tables.removed, *(ref for report in reports for ref in report.removed)}
    retained = {*tables.retained, *(stays.ref for report in reports for stays in report.kept if stays.duties)}
    kept = {**tables.kept, **{stays.ref: stays.why for report in reports for stays in report.kept}}
    models = {touched.ref: _why(touched.sure) for report in reports for touched in report.models}
    undecided = {**dict.fromkeys(tables.models, _why(False)), **models}
    undecided |= {ref: why for ref, why in kept.items() if ref not in retained}
    sealed = [arrival for arrivals in entities.values() for arrival in arrivals if arrival.stream.keys]
    rows = {dataset_of(arrival.stream, face) for arrival in sealed for face in arrival.labels}
    views = {arrival.view.bare for arrivals in entities.values() for arrival in arrivals}
    return [
        *(PlanItem(str(ref), ERASE) for ref in removed),
        *(PlanItem(str(ref), RESTRICT, reason=kept[ref], sealed=ref.bare in rows) for ref in retained),
        *(PlanItem(str(ref), DECIDE, reason=why) for ref, why in undecided.items()),
        *(PlanItem(name, DESTROY_KEY, reason="the key of sealed rows") for name in _key_tables(sealed)),
        *(PlanItem(str(ref), FORGET, reason="rows online and rows that were pushed") for ref in views),
        *(PlanItem(str(ref), FORGET, reason="requests that were kept") for ref in endpoints_of(here)),
        PlanItem(_ALL_KEYS, DESTROY_KEY, reason="what was sealed for the person, once no duty keeps anything"),
    ]


def _key_tables(sealed: Iterable[Arrival]) -> set[str]:
    return {str(keys_ref(dataset_of(arrival.stream))) for arrival in sealed}


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
        gone += here.serve.forget(endpoint, (subject,), f"request {request.name}", request)
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


def _planned(asked: Request, plan: ErasurePlan) -> Erased:
    ready = plan.state != PLANNED
    command = (
        f"falaj privacy erase {asked.ref} WHO"
        if ready
        else f"an approver runs: falaj approvals give {plan.approval} --digest {plan.digest}"
    )
    held = tuple(describe_retained(item) for item in plan.items if item.action == RESTRICT)
    state = plan.state if ready else "planned"
    return Erased(asked.ref, state, tuple(asked.steps), held, (), items=plan.items, next=command)


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
    statement = json.loads(certificate.statement)
    unread = tuple(f"{each['ref']}: {each['reason']}" for each in statement["not_searched"])
    state = "done" if certificate.state == "complete" else "partial"
    return replace(_told(asked, state, certificate.digest), unread=unread)


def _told(asked: Request, state: str, digest: str = "", page: SearchPage | None = None) -> Erased:
    retained = {text.partition(": ")[0] for text in asked.held}
    undecided = tuple(one.ref for one in asked.derived if not one.decision and one.ref not in retained)
    matches, unread = (
        tuple(f"{each.ref}: {each.reason}" for each in part)
        for part in ((page.matches, page.unread) if page else ((), ()))
    )
    following = _NEXT.get(state, "").format(request=asked.ref, thing=undecided[0] if undecided else "THING")
    return Erased(asked.ref, state, tuple(asked.steps), asked.held, undecided, digest, matches, unread, next=following)


def _said(found: list[Erasure]) -> str:
    removed, made = sum(len(one.removed) for one in found), sum(len(one.made) for one in found)
    views = sum(len(one.views) for one in found)
    return f"out of {views} views; {removed} versions removed, {made} made without them"


def _why(sure: bool) -> str:
    return "it learned from rows of theirs" if sure else "it may have learned from rows of theirs"
