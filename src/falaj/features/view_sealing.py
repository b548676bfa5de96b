"""Sealed views: before rows are published, each person's are sealed under that person's own key, keys and times too.

Opening gives plain segments in a folder of the reader's own, without the rows of people whose keys are gone.
"""

from collections.abc import Mapping
from pathlib import Path

from falaj.asof.person_sealing import make_associated_data
from falaj.asof.row_files import PartitionSegment, RowSchema, group_folder_name, list_partition_segments
from falaj.asof.sealed_segments import list_people, seal_segment, unseal_segment
from falaj.asof.segment import FileFetcher, Segment
from falaj.core.client_command import Client
from falaj.core.errors import Invalid
from falaj.features.person_keys import PersonKeyAccess, ensure_person_keys, list_pseudonyms, read_person_keys
from falaj.features.records import EntityDef


def seal_folder(
    client: Client, folder: Path, schema: RowSchema, entity: EntityDef, key_access: PersonKeyAccess
) -> None:
    """Seal every segment that `write_rows` left in a folder."""
    key_position = next((position for position, key in enumerate(entity.keys) if key.name == entity.subject), None)
    if key_position is None:
        raise Invalid(f"{entity.name} does not say which of its keys names a person", "give the entity a subject")
    paths = sorted((folder / group_folder_name("")).glob("p*.seg"))
    people_by_path = {path: list_people(Segment(FileFetcher(path)), key_position) for path in paths}
    unique_people = sorted({key for people_in_path in people_by_path.values() for key in people_in_path})
    pseudonym_by_person = dict(zip(unique_people, list_pseudonyms(key_access, unique_people), strict=True))
    keys = ensure_person_keys(client, key_access, list(pseudonym_by_person.values()))
    for path, people_in_path in people_by_path.items():
        starts, pseudonyms = (
            Segment(FileFetcher(path)).ranks().run_starts,
            [pseudonym_by_person[key] for key in people_in_path],
        )
        for group in sorted(schema.faces, reverse=True):  # the first face last: the others' runs are its own
            source = folder / group_folder_name(group) / path.name
            scratch = source.with_suffix(".tmp")
            seal_segment(
                Segment(FileFetcher(source)),
                starts,
                pseudonyms,
                keys,
                _make_associated_data(key_access, group, path.name),
                scratch,
            )
            scratch.replace(source)


def unseal_segments(
    client: Client,
    segments: Mapping[str, PartitionSegment],
    schema: RowSchema,
    entity: EntityDef,
    key_access: PersonKeyAccess,
    folder: Path,
) -> list[PartitionSegment]:
    """The same rows (segments by name) as plain segments in a folder: for as long as somebody reads them."""
    del entity
    groups = tuple(next(iter(segments.values())).fetch_by_face) if segments else ("",)
    keys = read_person_keys(client, key_access)
    for group in groups:
        (folder / group_folder_name(group)).mkdir(parents=True, exist_ok=True)
    for name, segment in segments.items():
        for group, fetch in segment.fetch_by_face.items():
            target_path = folder / group_folder_name(group) / name
            associated_data = _make_associated_data(key_access, group, name)
            if not unseal_segment(
                fetch, () if group else schema.keys, schema.faces[group], keys, associated_data, target_path
            ):
                target_path.unlink()
    return list_partition_segments(folder, groups)


def _make_associated_data(key_access: PersonKeyAccess, group: str, name: str) -> bytes:
    return make_associated_data(str(key_access.table), key_access.zone, group, name)
