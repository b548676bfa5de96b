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

from falaj.catalog.records import CatalogVersion
from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.features.erasure_report import ErasureReport
from falaj.features.person_erasure import erase_from, list_view_details, list_views, open_case
from falaj.features.person_keys import delete_version, list_retained, make_keys_ref
from falaj.features.records import EntityDef
from falaj.features.row_removal import parse_person
from falaj.features.row_stream import ViewDetails, make_dataset_ref
from falaj.privacy.person_search import SearchPage
from falaj.privacy.person_tables import ClearedTables, clear_tables, iterate_person_entities, list_subject_keys
from falaj.privacy.plan_objects import has_texts, is_plain_record, job_of, version_of
from falaj.privacy.plan_records import (
    DECIDE,
    DESTROY_KEY,
    ERASE,
    FORGET,
    PLANNED,
    RESTRICT,
    ErasurePlan,
    ErasurePlanItem,
)
from falaj.privacy.planning import describe_retained
from falaj.privacy.records import OPEN, RETAINED, ErasureCertificate, SubjectRequest
from falaj.privacy.row_removal import can_remove_rows, remove_rows
from falaj.serve.records import EndpointPage
from falaj.store.codec import to_json

ArrivalsByEntity = Mapping[Ref, Sequence[ViewDetails]]
"""Entities that may have somebody, with their views."""
_RECORD = "record "
_ALL_KEYS_NAME, _ALL_ANSWERS, _ANSWER = "keys:every-zone", "outcomes:every-zone", "outcome:"
_NEXT = {
    "waiting": "an approver or the dpo runs: falaj privacy decide {request} {thing} retrain|retire|accept --reason …",
    "found": "take the person out of what `matches` lists, or delete it, then: falaj privacy erase {request} WHO",
    "retained": "when falaj privacy retained --due lists it: falaj privacy erase {request} WHO",
}
"""The next command, by the state of an erasure."""


@dataclass(frozen=True, slots=True)
class ErasureStatus:
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
    items: tuple[ErasurePlanItem, ...] = ()
    """The plan: every object, what happens to it, which duty keeps it."""
    next: str = ""
    """What somebody has to do now, as a command."""

    @property
    def ok(self) -> bool:
        """True when there is a certificate, be it partial."""
        return self.state in ("done", "partial")


@client_command
def erase(
    client: Client,
    request: Annotated[Ref, "which request, of type erasure"],
    subject: Annotated[str, "who, by the identifier that the data carries; compared with the request's pseudonym"],
    out: Annotated[str, "a folder for certificate.json and proof.json, once it is done"] = "",
    plan: Annotated[bool, "only record and show what would happen to which object, and ask for approval"] = False,
) -> ErasureStatus:
    """Erase a person by a plan that a second person approves: keys, features, tables, journals; then the certificate.

    What a law, a legal hold or a contract keeps is restricted, so that nobody reads it, and named with the date; all
    else is erased. Run it again after an approval, a failure, a decision, or the end of a duty.

    Example:
        falaj privacy erase subject-request:privacy/0199d2f0 784-1990-1234567-1 --plan
    """
    subject_request: SubjectRequest = client.privacy.request(request)
    if subject_request.person != client.privacy.pseudonym(subject):
        raise Denied("this is not the person who asked", "check the identifier, letter by letter", request)
    if subject_request.state not in (OPEN, RETAINED):
        _require_erasable(subject_request)
        certificate = cast(ErasureCertificate, client.privacy.certify(request, subject))
        return _write_certificate(subject_request, certificate, out)
    if "restrict" not in subject_request.steps:
        client.privacy.restrict(subject, f"erasure asked for: {request}")
        subject_request = client.privacy.step(
            request, "restrict", "reads online, catalog reads and jobs refuse what has them"
        )
    people = list(iterate_person_entities(client))
    entities = dict(list_entities(client, subject, people))
    current_plan = _ensure_plan(client, subject_request, (entities, people), subject)
    if plan or current_plan.state == PLANNED:
        return _build_planned_status(subject_request, current_plan)
    if subject_request.state == RETAINED and not current_plan.due:
        return replace(_build_status(subject_request, "retained"), items=current_plan.items)
    subject_request = client.privacy.start_erasure(request, subject)
    finished_steps = set(subject_request.steps)
    _run_remaining_steps(client, subject_request, entities, subject, people)
    _remove_found_rows(client, subject_request, subject)
    retained = _settle_versions(client, subject_request)
    _delete_job_files(client, subject_request, subject)
    page = _search_and_redact(client, request, subject, retained)
    subject_request = client.privacy.request(request)
    page = replace(
        page, matches=tuple(match for match in page.matches if _strip_record_prefix(match.ref) not in retained)
    )
    if any(not derived.decision and derived.ref not in retained for derived in subject_request.derived):
        return _build_status(subject_request, "waiting", page=page)
    if page.matches:
        added = _plan_unnamed(client, subject_request, page)
        return (
            _build_planned_status(subject_request, added)
            if added is not None
            else _build_status(subject_request, "found", page=page)
        )
    if "journal" in finished_steps:
        _forget_journals(client, subject, request)  # what a gateway had not written yet when it was asked first
    if retained:
        return _build_status(client.privacy.retain(request, subject), "retained")
    certificate = cast(ErasureCertificate, client.privacy.certify(request, subject))
    return _write_certificate(subject_request, certificate, out)


def _note_tables(here: Client, request: Ref, tables: ClearedTables, before: str = "") -> None:
    kept = {str(ref): why for ref, why in tables.kept.items() if ref not in tables.retained}
    models = {str(ref): _describe_model_reason(False) for ref in tables.models}
    text = f"{len(tables.removed)} versions removed, {len(tables.made)} made without them"
    text = f"{before}; {text}"[-1000:] if before else text
    here.privacy.step(request, "tables", text, derived={**models, **kept})


def _remove_found_rows(here: Client, asked: SubjectRequest, subject: str) -> None:
    """Take rows out of planned tables, in every run: an earlier caller may have had no right to read them."""
    plan: ErasurePlan = here.privacy.plan(asked.ref)
    names = [item.ref for item in plan.items if item.action in (ERASE, RESTRICT) and not item.sealed]
    tables = remove_rows(here, names, (subject, asked.person), f"request {asked.ref.name}")
    if tables.removed or tables.kept:
        current: SubjectRequest = here.privacy.request(asked.ref)
        _note_tables(here, asked.ref, tables, current.steps.get("tables", ""))


def _search_and_redact(here: Client, request: Ref, subject: str, retained: set[str]) -> SearchPage:
    """Search, replace the identifier in the texts of records that the plan is about, and search again if there were."""
    page = _search_all_sources(here, request, subject)
    plan: ErasurePlan = here.privacy.plan(request)
    planned = {_strip_version(item) for item in plan.items}
    names = [match.ref.removeprefix(_RECORD) for match in page.matches if match.ref.startswith(_RECORD)]
    count = 0
    for name in names:
        if name not in retained and has_texts(name) and name.partition("@")[0] in planned:
            count += here.privacy.redact_record(request, subject, name)
    return _search_all_sources(here, request, subject) if count else page


def _ensure_plan(
    client: Client,
    subject_request: SubjectRequest,
    entities_and_people: tuple[ArrivalsByEntity, Sequence[tuple[Ref, EntityDef]]],
    subject: str,
) -> ErasurePlan:
    """The plan that is recorded, unless something came that it does not name: then the plan of all, to approve anew."""
    recorded_plan: ErasurePlan | None = None
    with suppress(NotFound):
        recorded_plan = client.privacy.plan(subject_request.ref)
    items = find_plan_items(client, entities_and_people[0], (subject, subject_request.person), entities_and_people[1])
    if recorded_plan is None:
        return cast(
            ErasurePlan,
            client.privacy.record_plan(subject_request.ref, _with_matches(client, subject_request.ref, subject, items)),
        )
    names = {_strip_version(item) for item in recorded_plan.items}
    # A table that cannot be rewritten by its columns is in the plan only where the search finds the person in it.
    if {
        _strip_version(item) for item in items if item.action != DECIDE or not item.ref.startswith("dataset:")
    } <= names:
        return recorded_plan
    items_by_ref = {item.ref: item for item in (*recorded_plan.items, *items)}
    return cast(ErasurePlan, client.privacy.record_plan(subject_request.ref, tuple(items_by_ref.values())))


def _plan_unnamed(here: Client, asked: SubjectRequest, page: SearchPage) -> ErasurePlan | None:
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


def _with_matches(
    client: Client, request: Ref, subject: str, items: Sequence[ErasurePlanItem]
) -> tuple[ErasurePlanItem, ...]:
    """Add what only a search of all bytes finds, and leave out tables that it calls clear."""
    page = _search_all_sources(client, request, subject)
    by_ref = {item.ref: item for item in found_items(client, page)}
    listed = {*by_ref, *(source.ref for source in page.unread)}
    for item in items:
        is_table = item.action == DECIDE and item.ref.startswith("dataset:")
        is_clear = is_table and item.ref not in listed and not page.unlisted
        if not is_clear and (item.action != DECIDE or item.ref not in by_ref):
            by_ref[item.ref] = item
    return tuple(by_ref.values())


def found_items(here: Client, page: SearchPage) -> list[ErasurePlanItem]:
    """List the matches of a search as objects of a plan; `record_plan` restricts those that a duty keeps."""
    reasons = {_strip_record_prefix(match.ref): match.reason for match in reversed(page.matches)}
    files = {match.ref for match in page.matches if not match.ref.startswith(_RECORD)}
    answers = [name for name in reasons if name.startswith(_ANSWER)]
    items = [
        ErasurePlanItem(name, ERASE if _can_erase(here, name, in_files=name in files) else DECIDE, reason=reason)
        for name, reason in reasons.items()
        if name not in answers
    ]
    reason = "answers that were kept for repeated requests"
    models = _find_models(here, [item.ref for item in items])
    learned = [
        ErasurePlanItem(str(model), DECIDE, reason=_describe_model_reason(False))
        for model in models
        if str(model) not in reasons
    ]
    return [*items, *learned, *([ErasurePlanItem(_ALL_ANSWERS, FORGET, reason=reason)] if answers else [])]


def _can_erase(here: Client, name: str, *, in_files: bool) -> bool:
    if job_of(name) is not None:
        return True
    return can_remove_rows(here, name) if in_files else has_texts(name)


def _find_models(here: Client, names: Sequence[str]) -> list[Ref]:
    """Models made from these datasets, at any distance, where no duty keeps the dataset."""
    refs = [ref for name in names if (ref := version_of(name)) is not None and ref.kind == "dataset"]
    kept = list_retained(here, refs)
    affected = {text for ref in refs if ref not in kept for text in here.audit.impact(ref).affected}
    return sorted(ref for text in affected if (ref := Ref.parse(text)).kind == "model")


def _strip_record_prefix(match: str) -> str:
    """The version that a match is about; what its record says is restricted and deleted with it."""
    return match.removeprefix(_RECORD)


def _settle_versions(client: Client, subject_request: SubjectRequest) -> set[str]:
    """Restrict everything that a duty keeps, and let go of what none keeps any more; name all that is retained."""
    plan: ErasurePlan = client.privacy.plan(subject_request.ref)
    reason = f"erased {subject_request.person}: request {subject_request.ref.name}"
    for item in plan.items:
        version_ref = None if item.sealed else version_of(item.ref)
        if item.action in (RESTRICT, ERASE) and is_plain_record(item.ref):
            client.privacy.settle_record(subject_request.ref, item.ref)
        if version_ref is not None and item.action == RESTRICT:
            client.catalog.restrict(version_ref, reason, erasure=subject_request.person)
        elif version_ref is not None and item.action == ERASE and _is_restricted(client, version_ref):
            delete_version(client, version_ref, reason)
    return {item.ref for item in plan.items if item.action == RESTRICT}


def _delete_job_files(here: Client, asked: SubjectRequest, subject: str) -> None:
    """Delete folders of ended attempts and checkpoints that the plan names; those of running ones stay listed."""
    plan: ErasurePlan = here.privacy.plan(asked.ref)
    for item in plan.items:
        if item.action == ERASE and job_of(item.ref) is not None:
            here.privacy.delete_job_files(asked.ref, subject, item.ref)


def _is_restricted(client: Client, ref: Ref) -> bool:
    with suppress(NotFound):
        version: CatalogVersion = client.catalog.show(ref)
        return version.state == "live" and version.restricted
    return False


def _strip_version(item: ErasurePlanItem) -> str:
    return item.ref.partition("@")[0]


def _run_remaining_steps(
    client: Client,
    subject_request: SubjectRequest,
    entities: ArrivalsByEntity,
    subject: str,
    people: Sequence[tuple[Ref, EntityDef]],
) -> SubjectRequest:
    """Every step that is not done yet, in order."""
    request, finished_steps, reason_text = (
        subject_request.ref,
        set(subject_request.steps),
        f"request {subject_request.ref.name}",
    )
    if "keys" not in finished_steps and not subject_request.held:
        zones = client.privacy.shred(request, subject)
        subject_request = client.privacy.step(request, "keys", f"destroyed in {', '.join(zones)}")
    if "features" not in finished_steps:
        reports = [
            erase_from(
                open_case(client, entity, entity_arrivals, subject, reason_text, request=request), entity_arrivals
            )
            for entity, entity_arrivals in entities.items()
        ]
        kept_reasons = {
            str(kept_version.ref): kept_version.why
            for erasure_report in reports
            for kept_version in erasure_report.kept
            if not kept_version.duties
        }
        model_reasons = {
            str(touched_model.ref): _describe_model_reason(touched_model.sure)
            for erasure_report in reports
            for touched_model in erasure_report.models
        }
        hidden_count = sum(erasure_report.hidden for erasure_report in reports)
        if hidden_count:
            raise Denied(
                f"{hidden_count} things about them may not be seen by you", "have somebody erase who may", request
            )
        subject_request = client.privacy.step(
            request, "features", _describe_reports(reports), derived={**kept_reasons, **model_reasons}
        )
    if "tables" not in finished_steps:
        tables = clear_tables(client, list_subject_keys(people), (subject, subject_request.person), reason_text, set())
        _note_tables(client, request, tables)
    if "journal" not in finished_steps:
        removed_count = _forget_journals(client, subject, request)
        subject_request = client.privacy.step(request, "journal", f"{removed_count} requests and labels removed")
    if "caches" not in finished_steps:
        step_result = (
            "samples of reads and rows online went with the features; bytes leave the store with the next collection"
        )
        subject_request = client.privacy.step(request, "caches", step_result)
    return subject_request


def _search_all_sources(client: Client, request: Ref, subject: str) -> SearchPage:
    """Search everything that is kept for the person, call by call."""
    with client.progress.task("searching what is kept", unit="sources") as task:
        page: SearchPage = client.privacy.search(request, subject)
        searched_count = page.searched
        task.advance(searched_count)
        while page.next:
            page = client.privacy.search(request, subject, page.next)
            task.advance(page.searched - searched_count)
            searched_count = page.searched
    return page


def find_plan_items(
    client: Client,
    entities: ArrivalsByEntity,
    subject_and_pseudonym: tuple[str, str],
    people: Sequence[tuple[Ref, EntityDef]],
) -> list[ErasurePlanItem]:
    """Look for everything that has the person, and say what an erasure does with each object. Destroys nothing."""
    subject, reports = subject_and_pseudonym[0], list[ErasureReport]()
    for entity, arrivals in entities.items():
        reports.append(erase_from(open_case(client, entity, arrivals, subject, "", is_dry_run=True), arrivals))
    if hidden := sum(report.hidden for report in reports):
        raise Denied(f"{hidden} things about them may not be seen by you", "have somebody plan it who may")
    tables = clear_tables(client, list_subject_keys(people), subject_and_pseudonym, "", set(), dry_run=True)
    removed = {*tables.removed, *(ref for report in reports for ref in report.removed)}
    retained = {
        *tables.retained,
        *(kept_version.ref for report in reports for kept_version in report.kept if kept_version.duties),
    }
    kept_reasons = {
        **tables.kept,
        **{kept_version.ref: kept_version.why for report in reports for kept_version in report.kept},
    }
    model_reasons = {
        touched_model.ref: _describe_model_reason(touched_model.sure)
        for report in reports
        for touched_model in report.models
    }
    undecided = {**dict.fromkeys(tables.models, _describe_model_reason(False)), **model_reasons}
    undecided |= {ref: item_reason for ref, item_reason in kept_reasons.items() if ref not in retained}
    sealed_arrivals = [arrival for arrivals in entities.values() for arrival in arrivals if arrival.stream.keys]
    row_datasets = {
        make_dataset_ref(arrival.stream, column_group) for arrival in sealed_arrivals for column_group in arrival.labels
    }
    view_refs = {arrival.view.bare for arrivals in entities.values() for arrival in arrivals}
    return [
        *(ErasurePlanItem(str(ref), ERASE) for ref in removed),
        *(
            ErasurePlanItem(str(ref), RESTRICT, reason=kept_reasons[ref], sealed=ref.bare in row_datasets)
            for ref in retained
        ),
        *(ErasurePlanItem(str(ref), DECIDE, reason=item_reason) for ref, item_reason in undecided.items()),
        *(
            ErasurePlanItem(name, DESTROY_KEY, reason="the key of sealed rows")
            for name in _list_key_tables(sealed_arrivals)
        ),
        *(ErasurePlanItem(str(ref), FORGET, reason="rows online and rows that were pushed") for ref in view_refs),
        *(ErasurePlanItem(str(ref), FORGET, reason="requests that were kept") for ref in list_endpoints(client)),
        ErasurePlanItem(
            _ALL_KEYS_NAME, DESTROY_KEY, reason="what was sealed for the person, once no duty keeps anything"
        ),
    ]


def _list_key_tables(sealed: Iterable[ViewDetails]) -> set[str]:
    return {str(make_keys_ref(make_dataset_ref(arrival.stream))) for arrival in sealed}


def list_entities(
    client: Client, subject: str, people: Iterable[tuple[Ref, EntityDef]]
) -> Iterator[tuple[Ref, list[ViewDetails]]]:
    """Every entity that is about people, has views, and could have this one; with those views."""
    views = list_views(client)
    for ref, entity_definition in people:
        with suppress(Invalid):  # their keys are of another type than this identifier
            parse_person(entity_definition, subject)
            if entity_arrivals := list_view_details(client, ref, views):
                yield ref, entity_arrivals


def _forget_journals(client: Client, subject: str, request: Ref) -> int:
    removed_count = 0
    for endpoint in list_endpoints(client):
        removed_count += client.serve.forget(endpoint, (subject,), f"request {request.name}", request)
    return removed_count


def list_endpoints(client: Client) -> Iterator[Ref]:
    """Every endpoint the caller may see."""
    after = ""
    while True:
        page: EndpointPage = client.serve.list(after=after)
        yield from (endpoint_item.ref for endpoint_item in page.endpoints)
        after = page.next
        if not after:
            return


def _build_planned_status(subject_request: SubjectRequest, plan: ErasurePlan) -> ErasureStatus:
    is_ready = plan.state != PLANNED
    command = (
        f"falaj privacy erase {subject_request.ref} WHO"
        if is_ready
        else f"an approver runs: falaj approvals give {plan.approval} --digest {plan.digest}"
    )
    retained_texts = tuple(describe_retained(item) for item in plan.items if item.action == RESTRICT)
    state = plan.state if is_ready else "planned"
    return ErasureStatus(
        subject_request.ref, state, tuple(subject_request.steps), retained_texts, (), items=plan.items, next=command
    )


def _require_erasable(subject_request: SubjectRequest) -> None:
    if subject_request.type != "erasure" or subject_request.state == "refused":
        raise Conflict(
            f"{subject_request.ref} asks for {subject_request.type} and is {subject_request.state}",
            "there is nothing to erase",
            subject_request.ref,
        )


def _write_certificate(subject_request: SubjectRequest, certificate: ErasureCertificate, out: str) -> ErasureStatus:
    if out:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "certificate.json").write_bytes(to_json(certificate))
        (folder / "proof.json").write_bytes(to_json(certificate.proof))
    statement = json.loads(certificate.statement)
    unread = tuple(f"{unread_source['ref']}: {unread_source['reason']}" for unread_source in statement["not_searched"])
    state = "done" if certificate.state == "complete" else "partial"
    return replace(_build_status(subject_request, state, certificate.digest), unread=unread)


def _build_status(
    subject_request: SubjectRequest, state: str, digest: str = "", page: SearchPage | None = None
) -> ErasureStatus:
    retained_refs = {text.partition(": ")[0] for text in subject_request.held}
    undecided = tuple(
        derived_item.ref
        for derived_item in subject_request.derived
        if not derived_item.decision and derived_item.ref not in retained_refs
    )
    matches, unread = (
        tuple(f"{source_finding.ref}: {source_finding.reason}" for source_finding in finding_list)
        for finding_list in ((page.matches, page.unread) if page else ((), ()))
    )
    following = _NEXT.get(state, "").format(request=subject_request.ref, thing=undecided[0] if undecided else "THING")
    return ErasureStatus(
        subject_request.ref,
        state,
        tuple(subject_request.steps),
        subject_request.held,
        undecided,
        digest,
        matches,
        unread,
        next=following,
    )


def _describe_reports(reports: list[ErasureReport]) -> str:
    removed_count, made_count = (
        sum(len(erasure_report.removed) for erasure_report in reports),
        sum(len(erasure_report.made) for erasure_report in reports),
    )
    view_count = sum(len(erasure_report.views) for erasure_report in reports)
    return f"out of {view_count} views; {removed_count} versions removed, {made_count} made without them"


def _describe_model_reason(is_certain: bool) -> str:
    return "it learned from rows of theirs" if is_certain else "it may have learned from rows of theirs"
