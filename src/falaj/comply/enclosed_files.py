"""Documents that go into a pack as bytes: sealed ones of the platform, and files that whoever makes the pack encloses.

A file attests a control only where it was declared what it is and of which day: `training@2026-05-01=courses.pdf`. Its
name alone says nothing. Whoever makes the pack answers for the declaration in the log, with the digest of the file.
"""

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from falaj.comply.control_maps import load_document_kinds
from falaj.comply.period_facts import AttachedDocument
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

MAX_DOCUMENT_BYTES = 16 << 20
MAX_FILE_NAME = 64
_DECLARATION_PATTERN = re.compile(r"([a-z][a-z-]*)@([0-9]{4}-[0-9]{2}-[0-9]{2})=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PackedDocument:
    """A file of the pack, and what it was declared to be; None where nothing was declared."""

    file: str
    data: bytes
    attached: AttachedDocument | None = None


def read_enclosed(texts: Iterable[str]) -> tuple[PackedDocument, ...]:
    """Read the files to enclose, each given as FILE or as KIND@DATE=FILE."""
    enclosed: dict[str, PackedDocument] = {}
    for text in texts:
        declaration = _DECLARATION_PATTERN.fullmatch(text)
        path = Path(declaration[3] if declaration else text)
        name = "enclosed-" + re.sub(r"[^a-z0-9._-]", "-", path.name.lower())
        is_acceptable = path.is_file() and path.stat().st_size <= MAX_DOCUMENT_BYTES and len(name) <= MAX_FILE_NAME
        if not is_acceptable or name in enclosed:
            hint = f"files that exist, of different names, at most {MAX_DOCUMENT_BYTES >> 20} MiB each"
            raise Invalid(f"{path.name[:60]} cannot be enclosed", hint)
        data = path.read_bytes()
        attached = _parse_declaration(declaration[1], declaration[2], name, data) if declaration else None
        enclosed[name] = PackedDocument(name, data, attached)
    return tuple(enclosed.values())


def _parse_declaration(kind: str, day: str, name: str, data: bytes) -> AttachedDocument:
    if kind not in load_document_kinds():
        raise Invalid(
            f"--enclose {kind}@{day}=…: {kind} is no kind of document", f"one of {', '.join(load_document_kinds())}"
        )
    try:
        dated_at = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise Invalid(f"--enclose {kind}@{day}=…: {day} is no day", "for example 2026-05-01") from error
    return AttachedDocument(kind, name, f"sha256:{hashlib.sha256(data).hexdigest()}", dated_at)
