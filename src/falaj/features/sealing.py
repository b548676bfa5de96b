"""Sealed views: before rows are published, each person's are sealed under that person's own key, keys and times too.

Opening gives plain segments in a folder of the reader's own, without the rows of people whose keys are gone.
"""

from collections.abc import Mapping
from pathlib import Path

from falaj.asof.rows import Part, RowSchema, face_folder, parts_in
from falaj.asof.sealed import bound_to
from falaj.asof.sealed_rows import open_segment, people_of, seal_segment
from falaj.asof.segment import File, Segment
from falaj.core.errand import Here
from falaj.core.errors import Invalid
from falaj.features.persons import Lock, ensure_keys, names_of, read_keys
from falaj.features.records import EntityDef


def seal_folder(here: Here, folder: Path, schema: RowSchema, entity: EntityDef, lock: Lock) -> None:
    """Seal every segment that `write_rows` left in a folder."""
    at = next((place for place, one in enumerate(entity.keys) if one.name == entity.subject), None)
    if at is None:
        raise Invalid(f"{entity.name} does not say which of its keys names a person", "give the entity a subject")
    paths = sorted((folder / face_folder("")).glob("p*.seg"))
    people = {path: people_of(Segment(File(path)), at) for path in paths}
    unique = sorted({one for found in people.values() for one in found})
    named = dict(zip(unique, names_of(lock, unique), strict=True))
    keys = ensure_keys(here, lock, list(named.values()))
    for path, found in people.items():
        starts, names = Segment(File(path)).ranks().run_starts, [named[one] for one in found]
        for face in sorted(schema.faces, reverse=True):  # the first face last: the others' runs are its own
            source = folder / face_folder(face) / path.name
            scratch = source.with_suffix(".tmp")
            seal_segment(Segment(File(source)), starts, names, keys, _bound(lock, face, path.name), scratch)
            scratch.replace(source)


def unseal(
    here: Here, parts: Mapping[str, Part], schema: RowSchema, entity: EntityDef, lock: Lock, folder: Path
) -> list[Part]:
    """The same rows (segments by name) as plain segments in a folder: for as long as somebody reads them."""
    del entity
    faces = tuple(next(iter(parts.values())).fetch_by_face) if parts else ("",)
    keys = read_keys(here, lock)
    for face in faces:
        (folder / face_folder(face)).mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        for face, fetch in part.fetch_by_face.items():
            target = folder / face_folder(face) / name
            bound = _bound(lock, face, name)
            if not open_segment(fetch, () if face else schema.keys, schema.faces[face], keys, bound, target):
                target.unlink()
    return parts_in(folder, faces)


def _bound(lock: Lock, face: str, name: str) -> bytes:
    return bound_to(str(lock.table), lock.zone, face, name)
