"""What this version adds to bodies of records, so that the version before keeps what it does not know.

While two versions work side by side, the older one may write over a record of the newer. Rooms write bodies whole, and
a field they do not know would be gone. So the newer marks its own fields in the record, and whoever writes over it
without naming them keeps them. Only fields at the top of a body can be marked.
"""

from collections.abc import Mapping
from typing import Any

ADDED: Mapping[str, tuple[str, ...]] = {}
"""By kind. A line stays for one version: the next one knows the field, and its neighbours do, too."""


def marked(kind: str, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a new body that the version before does not know."""
    added = ADDED.get(kind)
    return tuple(field for field in added if field in body) if added else ()


def carried(
    kind: str, body: Mapping[str, Any], old: Mapping[str, Any], kept: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A body that is written over `old`, with the fields marked there that we do not know; and what is marked then."""
    known = ADDED.get(kind, ())
    strange = tuple(field for field in kept if field not in known and field not in body and field in old)
    return {**body, **{field: old[field] for field in strange}}, (*marked(kind, body), *strange)
