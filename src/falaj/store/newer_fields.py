"""What this version adds to bodies of records, so that the version before keeps what it does not know.

While two versions work side by side, the older one may write over a record of the newer. Rooms write bodies whole, and
a field they do not know would be gone. So the newer marks its own fields in the record, and whoever writes over it
without naming them keeps them. Only fields at the top of a body can be marked.
"""

from collections.abc import Mapping
from typing import Any

ADDED_FIELDS: Mapping[str, tuple[str, ...]] = {}
"""By kind. A line stays for one version: the next one knows the field, and its neighbours do, too."""


def list_added_fields(kind: str, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a new body that the version before does not know."""
    added_fields = ADDED_FIELDS.get(kind)
    return tuple(field for field in added_fields if field in body) if added_fields else ()


def carry_newer_fields(
    kind: str, body: Mapping[str, Any], old_body: Mapping[str, Any], marked_fields: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A body that is written over `old_body`, with the fields marked there that we do not know; and what is marked
    then."""
    added_fields = ADDED_FIELDS.get(kind, ())
    unknown_fields = tuple(
        field for field in marked_fields if field not in added_fields and field not in body and field in old_body
    )
    return {**body, **{field: old_body[field] for field in unknown_fields}}, (
        *list_added_fields(kind, body),
        *unknown_fields,
    )
