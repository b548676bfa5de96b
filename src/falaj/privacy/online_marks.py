"""Marks of people who may not be used, put online again: for an online store that was lost and filled anew.

The ledger knows such people by pseudonym only, so whoever may read the keys of rows says who is there, and the platform
says which of them it knows.
"""

from collections.abc import Iterator

from falaj.asof.row_files import open_partition_segment, to_row_table
from falaj.core.client_command import Client, client_command
from falaj.features.person_erasure import list_view_details
from falaj.features.row_stream import ViewDetails, make_dataset_ref, make_row_schema
from falaj.features.segment_access import open_segment
from falaj.privacy.person_tables import iterate_person_entities
from falaj.privacy.refusing import MAX_SUBJECTS


@client_command
def remark(client: Client) -> int:
    """Put the marks of all who took back a consent or are restricted online again; gives how many people have some.

    Run it after an online store was lost. It reads the keys of every view about people.

    Example:
        falaj privacy remark
    """
    subjects: set[str] = set()
    for entity, entity_definition in iterate_person_entities(client):
        for arrival in {
            make_dataset_ref(held_arrival.stream): held_arrival for held_arrival in list_view_details(client, entity)
        }.values():
            subjects |= set(_read_subject_keys(client, arrival, entity_definition.subject))
    people = sorted(subjects)
    return sum(
        client.privacy.bar(tuple(people[batch_start : batch_start + MAX_SUBJECTS]))
        for batch_start in range(0, len(people), MAX_SUBJECTS)
    )


def _read_subject_keys(client: Client, arrival: ViewDetails, subject: str) -> Iterator[str]:
    """Who has rows in a view."""
    import pyarrow as pa
    import pyarrow.compute as pc

    client.features.rows(arrival.view)  # what was pushed is settled first
    arrival_details: ViewDetails = client.features.about(arrival.view)
    schema = make_row_schema(arrival_details.definition, arrival_details.entity)
    for segment in arrival_details.stream.chapters:
        with open_segment(client, segment, ("",), arrival_details) as open_parts:
            for open_chunk in open_parts:
                table = to_row_table(
                    open_partition_segment(open_chunk, [key_field.type for key_field in schema.keys]), schema.keys, []
                )
                yield from pc.unique(table.column(subject).cast(pa.string())).drop_null().to_pylist()
