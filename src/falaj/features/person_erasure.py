"""Erasing a person: out of the online store, out of the rows, out of the training sets; and a report of what is left.

Nothing is done by memory. What holds the person is found in the rows themselves and, by lineage, in what was made from
them; what was removed is read back from the tombstones, which carry the person's pseudonym. So it may be killed
anywhere: run again it goes on, ends the same, and says the same.

The platform bars the person first, so that no row of theirs comes in behind the back of what follows.
"""

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, cast

from falaj.asof.person_sealing import PSEUDONYM_BYTES
from falaj.asof.row_files import group_folder_name
from falaj.catalog.records import VERSION_STAGES, CatalogVersion
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client, client_command
from falaj.core.errors import Denied, Invalid, NotFound, StaleRevision, Unavailable
from falaj.core.ref import Ref
from falaj.features.erasure_case import PREVIOUS_ROLE, WITHOUT_TAG, ErasureCase, subtract_table_rows
from falaj.features.erasure_report import (
    ErasureReport,
    TouchedModel,
    VersionState,
    find_row_versions_to_remove,
    find_versions_to_remove,
)
from falaj.features.person_keys import (
    delete_version,
    destroy_person_keys,
    list_live_versions,
    list_retained,
    make_key_access,
    make_keys_ref,
)
from falaj.features.records import DefinitionPage, DefinitionView
from falaj.features.row_removal import (
    SEGMENT_SUFFIX,
    PersonRows,
    find_files_holding,
    holds_person,
    list_files,
    parse_person,
    write_files_without,
    write_rows_without,
)
from falaj.features.row_stream import RowSegment, ViewDetails, make_dataset_ref, make_quarantine_ref
from falaj.snapshot.amend import find_holding_batches

__all__ = ["erase", "make_key_access"]
_MANUAL_HINT = "look at it, and delete it if it holds them: falaj catalog delete"
_MAX_ATTEMPTS = 8
_MAX_OPENED_VERSIONS = 4
"""So many versions are kept open at once, each with some megabytes of what was read of it."""


@client_command
def erase(
    client: Client,
    entity: Annotated[Ref, "which entity, for example entity:fraud/customer"],
    key: Annotated[str, "the person, by the value of the key that names people"],
    reason: Annotated[str, "why, for the log; never the person's name"] = "",
    dry: Annotated[bool, "only say what would be done"] = False,
    purge: Annotated[bool, "rewrite sealed rows, too, though nobody can open the person's any more"] = False,
) -> ErasureReport:
    """Erase a person: from the online store, the rows of every view, and the training sets made of them.

    What endpoints kept of their requests is not looked at: `falaj privacy erase` does both, and all else.
    Models that learned from the person's rows are listed, with what to do. What a law, a legal hold or a contract keeps
    is restricted, so that nobody reads it, and named. Deleted bytes leave the store with the next collection. Run it
    again after a failure, or when a hold has ended: it goes on where it stopped.

    A second person approves it, unless it is dry: the first refusal says how to ask. `falaj privacy erase` has a plan
    that somebody approves instead.

    Example:
        falaj features erase entity:fraud/customer 784-1990-1234567-1 --reason "request 2027-114"
    """
    details_list = list_view_details(client, entity)
    if not details_list:
        raise NotFound(f"no view is about {entity.bare}", "falaj features list shows entities and views", entity)
    return erase_from(
        open_case(client, entity, details_list, key, reason, is_dry_run=dry), details_list, is_purge=purge
    )


def open_case(
    client: Client,
    entity: Ref,
    details_list: Sequence[ViewDetails],
    key: str,
    reason: str,
    *,
    is_dry_run: bool = False,
    request: Ref | None = None,
) -> ErasureCase:
    """An erasure from the views of an entity, before anything is done."""
    person = parse_person(details_list[0].entity, key)
    pseudonym_by_view = {
        details.view: client.features.pseudonyms(details.view, (person.bytes.hex(),))[0][: 2 * PSEUDONYM_BYTES]
        for details in details_list
    }
    return ErasureCase(client, entity, person, pseudonym_by_view, reason, is_dry_run, request)


def erase_from(case: ErasureCase, details_list: Sequence[ViewDetails], *, is_purge: bool = False) -> ErasureReport:
    """Erase a person from these views and from what was made of them."""
    client, person = case.here, case.person
    if not case.dry:
        for view in _list_regulated_views(client, details_list):
            client.features.rows(view)  # pushed rows that a law keeps become a version, which is then restricted
        for details in details_list:
            client.features.forget(details.view, {person.field.name: [person.value]}, person.field.name, case.request)
        details_list = [
            client.features.about(details.view) for details in details_list
        ]  # what came in until they were barred is there, too
    for details in {make_dataset_ref(view_details.stream): view_details for view_details in details_list}.values():
        if details.stream.keys:
            destroy_key(case, details)
        if is_purge or not details.stream.keys:
            remove_rows(case, details)
    cleared_sets = clear_training_sets(case, details_list)
    return build_report(case, details_list, cleared_sets)


def _list_regulated_views(client: Client, details_list: Sequence[ViewDetails]) -> list[Ref]:
    """The views whose label, or a regime of it, sets a least retention."""
    regimes = {name for regime in client.zones.regimes() if regime.retention for name in (regime.id, *regime.aliases)}
    labels = {arrival.view: list(arrival.labels.values()) for arrival in details_list}
    return [
        view
        for view, view_labels in labels.items()
        if any(label.holds or label.min_retain_s or label.regimes & regimes for label in view_labels)
    ]


def list_view_details(client: Client, entity: Ref, views: Sequence[DefinitionView] | None = None) -> list[ViewDetails]:
    """Every version of every view of an entity, with its stream."""
    details_list = []
    for view in list_views(client) if views is None else views:
        if entity.bare in {version_ref.bare for version_ref in view.uses}:
            versions = (view.ref.at(f"v{number}") for number in range(1, _get_version_number(view.ref) + 1))
            details_list += [cast(ViewDetails, client.features.about(version_ref)) for version_ref in versions]
    return details_list


def list_views(client: Client) -> list[DefinitionView]:
    """Every view the caller may see."""
    views, cursor = list[DefinitionView](), ""
    while True:
        page: DefinitionPage = client.features.list(kind="view", after=cursor)
        views += page.items
        cursor = page.next
        if not cursor:
            return views


def destroy_key(case: ErasureCase, arrival: ViewDetails) -> None:
    """Of a sealed view: take the person's key out of the table; while rows must be kept, restricted tables keep it."""
    name = make_dataset_ref(arrival.stream)
    row_versions = [
        version.ref
        for group in arrival.labels
        for version in list_live_versions(case.here, make_dataset_ref(arrival.stream, group))
    ]
    retained = list_retained(case.here, row_versions)
    case.kept.update(retained)
    if case.dry:
        return
    pseudonym_bytes = bytes.fromhex(case.marks[arrival.view])
    result = destroy_person_keys(
        case.here, make_key_access(case.here, arrival), [pseudonym_bytes], case.said, list(retained.values())
    )
    for retained_version in result.kept:
        case.kept[retained_version.ref] = retained_version
    case.recall(make_keys_ref(name))
    summary = "only restricted tables hold the person's key" if retained else "the person's key is gone"
    case.notes.append(f"the rows of {name} are sealed: {summary}, and the bytes stay as they were")


def remove_rows(case: ErasureCase, arrival: ViewDetails) -> None:
    """Take the person out of every chapter, and delete what held them, whether a chapter names it or nobody does."""
    for _ in range(_MAX_ATTEMPTS):
        # Somebody may settle or merge rows, or erase somebody else: then look again. It is over when nothing is found.
        with suppress(StaleRevision, NotFound):
            if _remove_rows_once(case, arrival) or case.dry:
                return
        arrival = case.here.features.about(arrival.view)
    raise Unavailable(f"others kept changing the rows of {arrival.view}", "call again", arrival.view)


def clear_training_sets(case: ErasureCase, details_list: Sequence[ViewDetails]) -> set[Ref]:
    """Take the person out of quarantines, and of every table that lineage says was made from the rows; gives names."""
    row_datasets = {make_dataset_ref(details.stream, group) for details in details_list for group in details.labels}
    row_datasets |= {make_keys_ref(make_dataset_ref(details.stream)) for details in details_list}
    quarantine_datasets = {make_quarantine_ref(details.stream) for details in details_list}
    derived_datasets = {
        ref.bare for root in _list_lineage_roots(case, details_list) for ref in _list_affected(case, root, "dataset")
    }
    for name in sorted((quarantine_datasets | derived_datasets) - row_datasets):
        # Each version of a quarantine holds rows of its own; of a training set the newest stands for all before it.
        clear_training_set(case, name, is_each_version=name in quarantine_datasets)
    return (quarantine_datasets | derived_datasets) - row_datasets


def build_report(case: ErasureCase, details_list: Sequence[ViewDetails], cleared_sets: set[Ref]) -> ErasureReport:
    """What is gone, by this run or an earlier one, what is left, and which models learned from it."""
    own_datasets = {
        make_dataset_ref(details.stream, group) for details in details_list for group in details.labels
    } | cleared_sets
    for name in own_datasets - cleared_sets:  # of the sets it is known since they were looked at
        case.recall(name)
        case.know(list_live_versions(case.here, name))
    used_versions = set().union(
        *(_list_used_versions(case.here.features.about(details.view)) for details in details_list)
    )
    replacement_refs = tuple(sorted(ref for ref in case.made if ref.bare in cleared_sets or ref in used_versions))
    sources = {
        details.definition.source.address for details in details_list if details.definition.source.kind != "push"
    }
    removed_inputs = [case.inputs(ref).values() for ref in case.removed if ref.bare in cleared_sets]
    sources |= {
        str(ref.bare)
        for refs in removed_inputs
        for ref in refs
        if ref.kind == "dataset" and ref.bare not in own_datasets
    }
    notes = [f"{source} was read to make them, and is no part of this" for source in sorted(filter(None, sources))]
    notes.append("requests that endpoints kept are no part of this: falaj serve forget, or falaj privacy erase for all")
    roots = _list_lineage_roots(case, details_list)
    hidden_count = max(case.impact(root).hidden for root in (case.entity, *roots))
    retained = tuple(case.kept[ref] for ref in sorted(case.kept) if ref not in case.removed)
    return ErasureReport(
        case.entity, case.mark, case.dry, tuple(case.marks), tuple(sorted(case.removed)), replacement_refs,
        retained, _list_touched_models(case, roots, cleared_sets), (*case.notes, *notes), hidden_count,
    )  # fmt: skip


def _inspect_row_versions(case: ErasureCase, arrival: ViewDetails, group: str) -> list[VersionState]:
    version_states = []
    for version in list_live_versions(case.here, make_dataset_ref(arrival.stream, group)):
        if version.restricted:  # nobody may open it: it goes, or is retained for this person too
            version_states.append(VersionState(version.ref, frozenset(), True))
            continue
        version_info, snapshot = open_version(case.here, version.ref)
        names = frozenset(entry.path.rpartition(b"/")[2].decode() for entry in list_files(snapshot, SEGMENT_SUFFIX))
        if arrival.stream.keys:  # nobody can tell any more: what was not made without them may hold them
            is_holder = case.mark not in version.tags.get(WITHOUT_TAG, "").split()
        else:
            is_holder = not group and holds_person(case.here, version.ref, case.person)
        version_states.append(
            VersionState(version.ref, frozenset(batch.bundle for batch in version_info.tree.batches), is_holder, names)
        )
    return version_states


def _remove_rows_once(case: ErasureCase, arrival: ViewDetails) -> bool:
    """Look once at all rows and take out what is found; True when there was nothing to do."""
    segments = arrival.stream.chapters
    states_by_group = {group: _inspect_row_versions(case, arrival, group) for group in arrival.labels}
    versions_to_remove = find_row_versions_to_remove(states_by_group, [segment.faces for segment in segments])
    if versions_to_remove <= case.kept.keys() - _list_used_versions(arrival):
        return True
    for segment in () if case.dry else segments:
        if not versions_to_remove.isdisjoint(segment.faces.values()):
            _replace_segment(case, arrival, segment)
    versions_to_remove -= set() if case.dry else _list_used_versions(case.here.features.about(arrival.view))
    # The face with the keys goes last: it tells, when this is run again, which files of the others are theirs.
    for group in sorted(states_by_group, reverse=True):
        for ref in (
            version_state.ref for version_state in states_by_group[group] if version_state.ref in versions_to_remove
        ):
            case.take(ref)
    return False


def _list_used_versions(arrival: ViewDetails) -> set[Ref]:
    return {ref for segment in arrival.stream.chapters for ref in segment.faces.values()}


def _replace_segment(case: ErasureCase, arrival: ViewDetails, segment: RowSegment) -> None:
    """Put the same chapter without the person in its place, unless somebody else put another there meanwhile."""
    version_by_group = {group: case.show(ref) for group, ref in segment.faces.items()}
    published: dict[str, Ref] = {}
    with tempfile.TemporaryDirectory(prefix="falaj-erase-") as scratch:
        folder = Path(scratch)
        remaining_rows = write_rows_without(case.here, arrival, segment, case.person, folder)
        try:
            for group, version in version_by_group.items() if remaining_rows else ():
                published[group] = case.publish(version, folder / group_folder_name(group))
            current: ViewDetails = case.here.features.about(arrival.view)
            if segment.faces not in [current_segment.faces for current_segment in current.stream.chapters]:
                raise StaleRevision(
                    f"another chapter came in the place of {segment.generation}", "look again", arrival.view
                )
            case.here.features.replace(arrival.view, segment.generation, published, remaining_rows)
        except (StaleRevision, NotFound):
            for ref in published.values():  # they may hold whom somebody else took out of the chapter meanwhile
                case.made.pop(ref, None)
                delete_version(case.here, ref, "somebody else was faster")
            raise


def clear_training_set(case: ErasureCase, name: Ref, *, is_each_version: bool) -> None:
    known_files: dict[str, PersonRows] = {}
    for _ in range(_MAX_ATTEMPTS):
        with suppress(StaleRevision, NotFound):
            if _clear_training_set_once(case, name, known_files, is_each_version=is_each_version) or case.dry:
                return
    raise Unavailable(f"others kept changing {name}", "call again", name)


def _clear_training_set_once(
    case: ErasureCase, name: Ref, known_files: dict[str, PersonRows], *, is_each_version: bool
) -> bool:
    """Look once at all versions and take out what is found; True when there was nothing to do."""
    versions = list(list_live_versions(case.here, name))
    version_states = [
        state for version in versions if (state := _inspect_training_set(case, version, known_files)) is not None
    ]
    versions_to_remove, newest = (
        find_versions_to_remove(version_states),
        max((state.ref for state in versions), key=_get_version_number, default=None),
    )
    case.know(versions)
    if versions_to_remove <= case.kept.keys() or case.dry:
        case.recall(name)
    if versions_to_remove <= case.kept.keys():
        return True
    for version in versions if not case.dry else ():
        is_replaceable = (
            version.ref in versions_to_remove and (is_each_version or version.ref == newest) and not version.restricted
        )
        if is_replaceable and version.ref not in case.made.values():
            _replace_training_set(case, version, known_files, is_each_version=is_each_version)
    for version in versions:
        if version.ref in versions_to_remove:
            move_aliases(case, version)
            case.take(version.ref)
    return False


def _inspect_training_set(
    case: ErasureCase, version: CatalogVersion, known_files: dict[str, PersonRows]
) -> VersionState | None:
    if version.ref in case.fresh or version.restricted:
        return VersionState(version.ref, frozenset(), version.restricted)
    columns = case.columns(version)
    person_batches: frozenset[str] = frozenset()
    try:
        version_info, snapshot = open_version(case.here, version.ref)
    except Denied as error:
        case.keep(version.ref, f"you may not read it: {error.message}", "have somebody erase who may")
        return None
    try:
        if not columns:
            raise Invalid(f"it has no column {case.person.field.name}, so nobody can tell whose rows are in it")
        person_batches = find_holding_batches(snapshot, find_files_holding(snapshot, columns, case.person, known_files))
        if person_batches and len(case.opened) < _MAX_OPENED_VERSIONS:
            case.opened[version.ref] = snapshot
    except Invalid as error:
        case.keep(version.ref, error.message, _MANUAL_HINT)
    batches = frozenset(batch.bundle for batch in version_info.tree.batches)
    return VersionState(version.ref, batches, bool(person_batches), theirs=person_batches)


def _replace_training_set(
    case: ErasureCase, version: CatalogVersion, known_files: dict[str, PersonRows], *, is_each_version: bool
) -> None:
    columns = case.columns(version)
    snapshot = case.opened.pop(version.ref, None) or open_version(case.here, version.ref)[1]
    with tempfile.TemporaryDirectory(prefix="falaj-erase-") as scratch:
        changed_files, removed_rows = write_files_without(snapshot, columns, case.person, known_files, Path(scratch))
        replacement = case.amend(
            version, snapshot, changed_files, subtract_table_rows(version.table, removed_rows, columns)
        )
    earlier_versions = [
        set_version
        for set_version in list_live_versions(case.here, version.ref.bare)
        if _get_version_number(set_version.ref) < _get_version_number(replacement)
    ]
    conflicting = [
        set_version.ref
        for set_version in earlier_versions
        if _get_version_number(set_version.ref) > _get_version_number(version.ref) and not is_each_version
    ]
    conflicting += [
        set_version.ref for set_version in earlier_versions if set_version.inputs.get(PREVIOUS_ROLE) == version.ref
    ]
    if conflicting or version.ref not in {set_version.ref for set_version in earlier_versions}:
        # Somebody was faster, perhaps to take another person out, who is in what was made here.
        case.made.pop(replacement)
        delete_version(case.here, replacement, "somebody else was faster")
        raise StaleRevision(f"{version.ref} was replaced meanwhile", "look again", version.ref)


def move_aliases(case: ErasureCase, version: CatalogVersion) -> None:
    """What a word meant goes on under the version that stands in its place; stages move by promotion only."""
    after = next((ref for ref, before in case.made.items() if before == version.ref), None)
    for alias in version.aliases:
        if after is not None and alias not in VERSION_STAGES and not case.dry:
            case.here.catalog.tag(after, alias, case.said)


def _list_touched_models(case: ErasureCase, roots: Sequence[Ref], cleared_sets: set[Ref]) -> tuple[TouchedModel, ...]:
    """Models after training sets that held the person, and those that came from the view some other way."""
    sets_by_model: dict[Ref, list[Ref]] = {}
    for ref in sorted(case.removed | case.kept.keys()):
        if ref.bare in cleared_sets:
            for model in _list_affected(case, ref, "model"):
                sets_by_model.setdefault(model, []).append(ref)
    other_models = {model for root in roots for model in _list_affected(case, root, "model")} - sets_by_model.keys()
    touched_models = []
    for model in sorted(sets_by_model.keys() | other_models):
        replacements = sorted(
            (ref for ref in case.made if ref.bare in {set_ref.bare for set_ref in sets_by_model.get(model, ())}),
            key=_get_version_number,
        )
        advice = f"train it again on {replacements[-1]}" if replacements else "train it again"
        touched_models.append(
            TouchedModel(
                model, model in sets_by_model, tuple(sets_by_model.get(model, ())), f"{advice}, and retire this version"
            )
        )
    return tuple(touched_models)


def _list_lineage_roots(case: ErasureCase, details_list: Sequence[ViewDetails]) -> list[Ref]:
    """Where lineage begins: every version of the rows there ever was, and the views, for sets made without our rows."""
    row_datasets = sorted(
        {make_dataset_ref(details.stream, group) for details in details_list for group in details.labels}
    )
    return [
        *sorted({details.view for details in details_list}),
        *(ref for name in row_datasets for ref in case.ever(name)),
    ]


def _list_affected(case: ErasureCase, ref: Ref, kind: str) -> list[Ref]:
    return [affected_ref for text in case.impact(ref).affected if (affected_ref := Ref.parse(text)).kind == kind]


def _get_version_number(ref: Ref) -> int:
    return int(ref.version[1:])
