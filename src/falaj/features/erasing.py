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

from falaj.asof.rows import face_folder
from falaj.asof.sealed import NAME_BYTES
from falaj.catalog.reading import open_version
from falaj.catalog.records import STAGES, Version
from falaj.core.errand import Here, errand
from falaj.core.errors import Denied, Invalid, NotFound, Stale, Unavailable
from falaj.core.ref import Ref
from falaj.features.case import BEFORE, WITHOUT, Case, less
from falaj.features.erasure import Erasure, Seen, Touched, spread, spread_rows
from falaj.features.persons import destroy_keys, kept_by_law, keys_ref, lock_of, remove, versions_of
from falaj.features.records import Defined, DefinedPage
from falaj.features.rewriting import (
    SEGMENT,
    Theirs,
    files_of,
    person_of,
    rows_hold,
    rows_without,
    set_holding,
    set_without,
)
from falaj.features.stream import Arrival, Chapter, dataset_of, quarantine_of
from falaj.snapshot.amend import holding

__all__ = ["erase", "lock_of"]
_BY_HAND = "look at it, and delete it if it holds them: falaj catalog delete"
_TRIES = 8
_OPENED = 4
"""So many versions are kept open at once, each with some megabytes of what was read of it."""


@errand
def erase(
    here: Here,
    entity: Annotated[Ref, "which entity, for example entity:fraud/customer"],
    key: Annotated[str, "the person, by the value of the key that names people"],
    reason: Annotated[str, "why, for the log; never the person's name"] = "",
    dry: Annotated[bool, "only say what would be done"] = False,
    purge: Annotated[bool, "rewrite sealed rows, too, though nobody can open the person's any more"] = False,
) -> Erasure:
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
    held = holdings(here, entity)
    if not held:
        raise NotFound(f"no view is about {entity.bare}", "falaj features list shows entities and views", entity)
    return erase_from(open_case(here, entity, held, key, reason, dry=dry), held, purge=purge)


def open_case(
    here: Here,
    entity: Ref,
    held: Sequence[Arrival],
    key: str,
    reason: str,
    *,
    dry: bool = False,
    request: Ref | None = None,
) -> Case:
    """An erasure from the views of an entity, before anything is done."""
    person = person_of(held[0].entity, key)
    marks = {one.view: here.features.pseudonyms(one.view, (person.bytes.hex(),))[0][: 2 * NAME_BYTES] for one in held}
    return Case(here, entity, person, marks, reason, dry, request)


def erase_from(case: Case, held: Sequence[Arrival], *, purge: bool = False) -> Erasure:
    """Erase a person from these views and from what was made of them."""
    here, person = case.here, case.person
    if not case.dry:
        for view in _regulated_views(here, held):
            here.features.rows(view)  # pushed rows that a law keeps become a version, which is then restricted
        for one in held:
            here.features.forget(one.view, {person.field.name: [person.value]}, person.field.name, case.request)
        held = [here.features.about(one.view) for one in held]  # what came in until they were barred is there, too
    for one in {dataset_of(each.stream): each for each in held}.values():
        if one.stream.keys:
            destroy_key(case, one)
        if purge or not one.stream.keys:
            clear_rows(case, one)
    sets = clear_sets(case, held)
    return report(case, held, sets)


def _regulated_views(here: Here, held: Sequence[Arrival]) -> list[Ref]:
    """The views whose label, or a regime of it, sets a least retention."""
    regimes = {name for regime in here.zones.regimes() if regime.retention for name in (regime.id, *regime.aliases)}
    labels = {arrival.view: list(arrival.labels.values()) for arrival in held}
    return [
        view
        for view, each in labels.items()
        if any(label.holds or label.min_retain_s or label.regimes & regimes for label in each)
    ]


def holdings(here: Here, entity: Ref, views: Sequence[Defined] | None = None) -> list[Arrival]:
    """Every version of every view of an entity, with its stream."""
    found = []
    for view in views_of(here) if views is None else views:
        if entity.bare in {one.bare for one in view.uses}:
            versions = (view.ref.at(f"v{number}") for number in range(1, _number(view.ref) + 1))
            found += [cast(Arrival, here.features.about(one)) for one in versions]
    return found


def views_of(here: Here) -> list[Defined]:
    """Every view the caller may see."""
    found, after = list[Defined](), ""
    while True:
        page: DefinedPage = here.features.list(kind="view", after=after)
        found += page.items
        after = page.next
        if not after:
            return found


def destroy_key(case: Case, arrival: Arrival) -> None:
    """Of a sealed view: take the person's key out of the table; while rows must be kept, restricted tables keep it."""
    name = dataset_of(arrival.stream)
    rows = [one.ref for face in arrival.labels for one in versions_of(case.here, dataset_of(arrival.stream, face))]
    retained = kept_by_law(case.here, rows)
    case.kept.update(retained)
    if case.dry:
        return
    mark = bytes.fromhex(case.marks[arrival.view])
    done = destroy_keys(case.here, lock_of(case.here, arrival), [mark], case.said, list(retained.values()))
    for stays in done.kept:
        case.kept[stays.ref] = stays
    case.recall(keys_ref(name))
    after = "only restricted tables hold the person's key" if retained else "the person's key is gone"
    case.notes.append(f"the rows of {name} are sealed: {after}, and the bytes stay as they were")


def clear_rows(case: Case, arrival: Arrival) -> None:
    """Take the person out of every chapter, and delete what held them, whether a chapter names it or nobody does."""
    for _ in range(_TRIES):
        # Somebody may settle or merge rows, or erase somebody else: then look again. It is over when nothing is found.
        with suppress(Stale, NotFound):
            if _clear_once(case, arrival) or case.dry:
                return
        arrival = case.here.features.about(arrival.view)
    raise Unavailable(f"others kept changing the rows of {arrival.view}", "call again", arrival.view)


def clear_sets(case: Case, held: Sequence[Arrival]) -> set[Ref]:
    """Take the person out of quarantines, and of every table that lineage says was made from the rows; gives names."""
    own = {dataset_of(one.stream, face) for one in held for face in one.labels}
    own |= {keys_ref(dataset_of(one.stream)) for one in held}
    aside = {quarantine_of(one.stream) for one in held}
    made = {ref.bare for root in _roots(case, held) for ref in _after(case, root, "dataset")}
    for name in sorted((aside | made) - own):
        # Each version of a quarantine holds rows of its own; of a training set the newest stands for all before it.
        clear_set(case, name, each=name in aside)
    return (aside | made) - own


def report(case: Case, held: Sequence[Arrival], sets: set[Ref]) -> Erasure:
    """What is gone, by this run or an earlier one, what is left, and which models learned from it."""
    own = {dataset_of(one.stream, face) for one in held for face in one.labels} | sets
    for name in own - sets:  # of the sets it is known since they were looked at
        case.recall(name)
        case.know(versions_of(case.here, name))
    used = set().union(*(_used(case.here.features.about(one.view)) for one in held))
    made = tuple(sorted(ref for ref in case.made if ref.bare in sets or ref in used))
    sources = {one.definition.source.address for one in held if one.definition.source.kind != "push"}
    taken = [case.inputs(ref).values() for ref in case.removed if ref.bare in sets]
    sources |= {str(ref.bare) for refs in taken for ref in refs if ref.kind == "dataset" and ref.bare not in own}
    notes = [f"{source} was read to make them, and is no part of this" for source in sorted(filter(None, sources))]
    notes.append("requests that endpoints kept are no part of this: falaj serve forget, or falaj privacy erase for all")
    roots = _roots(case, held)
    hidden = max(case.impact(root).hidden for root in (case.entity, *roots))
    kept = tuple(case.kept[ref] for ref in sorted(case.kept) if ref not in case.removed)
    return Erasure(
        case.entity, case.mark, case.dry, tuple(case.marks), tuple(sorted(case.removed)), made,
        kept, _models(case, roots, sets), (*case.notes, *notes), hidden,
    )  # fmt: skip


def _seen_rows(case: Case, arrival: Arrival, face: str) -> list[Seen]:
    found = []
    for version in versions_of(case.here, dataset_of(arrival.stream, face)):
        if version.restricted:  # nobody may open it: it goes, or is retained for this person too
            found.append(Seen(version.ref, frozenset(), True))
            continue
        opened, snapshot = open_version(case.here, version.ref)
        names = frozenset(entry.path.rpartition(b"/")[2].decode() for entry in files_of(snapshot, SEGMENT))
        if arrival.stream.keys:  # nobody can tell any more: what was not made without them may hold them
            holds = case.mark not in version.tags.get(WITHOUT, "").split()
        else:
            holds = not face and rows_hold(case.here, version.ref, case.person)
        found.append(Seen(version.ref, frozenset(batch.bundle for batch in opened.tree.batches), holds, names))
    return found


def _clear_once(case: Case, arrival: Arrival) -> bool:
    """Look once at all rows and take out what is found; True when there was nothing to do."""
    chapters = arrival.stream.chapters
    seen = {face: _seen_rows(case, arrival, face) for face in arrival.labels}
    bad = spread_rows(seen, [chapter.faces for chapter in chapters])
    if bad <= case.kept.keys() - _used(arrival):
        return True
    for chapter in () if case.dry else chapters:
        if not bad.isdisjoint(chapter.faces.values()):
            _amend(case, arrival, chapter)
    bad -= set() if case.dry else _used(case.here.features.about(arrival.view))
    # The face with the keys goes last: it tells, when this is run again, which files of the others are theirs.
    for face in sorted(seen, reverse=True):
        for ref in (one.ref for one in seen[face] if one.ref in bad):
            case.take(ref)
    return False


def _used(arrival: Arrival) -> set[Ref]:
    return {ref for chapter in arrival.stream.chapters for ref in chapter.faces.values()}


def _amend(case: Case, arrival: Arrival, chapter: Chapter) -> None:
    """Put the same chapter without the person in its place, unless somebody else put another there meanwhile."""
    shown = {face: case.show(ref) for face, ref in chapter.faces.items()}
    after: dict[str, Ref] = {}
    with tempfile.TemporaryDirectory(prefix="falaj-erase-") as scratch:
        folder = Path(scratch)
        left = rows_without(case.here, arrival, chapter, case.person, folder)
        try:
            for face, version in shown.items() if left else ():
                after[face] = case.publish(version, folder / face_folder(face))
            now: Arrival = case.here.features.about(arrival.view)
            if chapter.faces not in [one.faces for one in now.stream.chapters]:
                raise Stale(f"another chapter came in the place of {chapter.generation}", "look again", arrival.view)
            case.here.features.replace(arrival.view, chapter.generation, after, left)
        except (Stale, NotFound):
            for ref in after.values():  # they may hold whom somebody else took out of the chapter meanwhile
                case.made.pop(ref, None)
                remove(case.here, ref, "somebody else was faster")
            raise


def clear_set(case: Case, name: Ref, *, each: bool) -> None:
    known: dict[str, Theirs] = {}
    for _ in range(_TRIES):
        with suppress(Stale, NotFound):
            if _clear_set_once(case, name, known, each=each) or case.dry:
                return
    raise Unavailable(f"others kept changing {name}", "call again", name)


def _clear_set_once(case: Case, name: Ref, known: dict[str, Theirs], *, each: bool) -> bool:
    """Look once at all versions and take out what is found; True when there was nothing to do."""
    versions = list(versions_of(case.here, name))
    seen = [one for version in versions if (one := _seen_set(case, version, known)) is not None]
    bad, newest = spread(seen), max((one.ref for one in versions), key=_number, default=None)
    case.know(versions)
    if bad <= case.kept.keys() or case.dry:
        case.recall(name)
    if bad <= case.kept.keys():
        return True
    for version in versions if not case.dry else ():
        replaced = version.ref in bad and (each or version.ref == newest) and not version.restricted
        if replaced and version.ref not in case.made.values():
            _replace_set(case, version, known, each=each)
    for version in versions:
        if version.ref in bad:
            move_aliases(case, version)
            case.take(version.ref)
    return False


def _seen_set(case: Case, version: Version, known: dict[str, Theirs]) -> Seen | None:
    if version.ref in case.fresh or version.restricted:
        return Seen(version.ref, frozenset(), version.restricted)
    columns = case.columns(version)
    theirs: frozenset[str] = frozenset()
    try:
        opened, snapshot = open_version(case.here, version.ref)
    except Denied as error:
        case.keep(version.ref, f"you may not read it: {error.message}", "have somebody erase who may")
        return None
    try:
        if not columns:
            raise Invalid(f"it has no column {case.person.field.name}, so nobody can tell whose rows are in it")
        theirs = holding(snapshot, set_holding(snapshot, columns, case.person, known))
        if theirs and len(case.opened) < _OPENED:
            case.opened[version.ref] = snapshot
    except Invalid as error:
        case.keep(version.ref, error.message, _BY_HAND)
    batches = frozenset(batch.bundle for batch in opened.tree.batches)
    return Seen(version.ref, batches, bool(theirs), theirs=theirs)


def _replace_set(case: Case, version: Version, known: dict[str, Theirs], *, each: bool) -> None:
    columns = case.columns(version)
    snapshot = case.opened.pop(version.ref, None) or open_version(case.here, version.ref)[1]
    with tempfile.TemporaryDirectory(prefix="falaj-erase-") as scratch:
        changed, gone = set_without(snapshot, columns, case.person, known, Path(scratch))
        made = case.amend(version, snapshot, changed, less(version.table, gone, columns))
    others = [one for one in versions_of(case.here, version.ref.bare) if _number(one.ref) < _number(made)]
    later = [one.ref for one in others if _number(one.ref) > _number(version.ref) and not each]
    later += [one.ref for one in others if one.inputs.get(BEFORE) == version.ref]
    if later or version.ref not in {one.ref for one in others}:
        # Somebody was faster, perhaps to take another person out, who is in what was made here.
        case.made.pop(made)
        remove(case.here, made, "somebody else was faster")
        raise Stale(f"{version.ref} was replaced meanwhile", "look again", version.ref)


def move_aliases(case: Case, version: Version) -> None:
    """What a word meant goes on under the version that stands in its place; stages move by promotion only."""
    after = next((ref for ref, before in case.made.items() if before == version.ref), None)
    for alias in version.aliases:
        if after is not None and alias not in STAGES and not case.dry:
            case.here.catalog.tag(after, alias, case.said)


def _models(case: Case, roots: Sequence[Ref], sets: set[Ref]) -> tuple[Touched, ...]:
    """Models after training sets that held the person, and those that came from the view some other way."""
    through: dict[Ref, list[Ref]] = {}
    for ref in sorted(case.removed | case.kept.keys()):
        if ref.bare in sets:
            for model in _after(case, ref, "model"):
                through.setdefault(model, []).append(ref)
    others = {model for root in roots for model in _after(case, root, "model")} - through.keys()
    found = []
    for model in sorted(through.keys() | others):
        after = sorted(
            (ref for ref in case.made if ref.bare in {one.bare for one in through.get(model, ())}), key=_number
        )
        again = f"train it again on {after[-1]}" if after else "train it again"
        found.append(
            Touched(model, model in through, tuple(through.get(model, ())), f"{again}, and retire this version")
        )
    return tuple(found)


def _roots(case: Case, held: Sequence[Arrival]) -> list[Ref]:
    """Where lineage begins: every version of the rows there ever was, and the views, for sets made without our rows."""
    rows = sorted({dataset_of(one.stream, face) for one in held for face in one.labels})
    return [*sorted({one.view for one in held}), *(ref for name in rows for ref in case.ever(name))]


def _after(case: Case, ref: Ref, kind: str) -> list[Ref]:
    return [found for text in case.impact(ref).affected if (found := Ref.parse(text)).kind == kind]


def _number(ref: Ref) -> int:
    return int(ref.version[1:])
