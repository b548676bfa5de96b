"""Client command: propose a transfer grant together with its document files."""

import mimetypes
import re
from pathlib import Path
from typing import Annotated

from falaj.core.byte_stream import ByteStream
from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.govern.records import GrantState

_CHUNK_BYTES = 1 << 20
_EMPTY_OPTIONS: dict[str, str] = {}


@client_command
def propose(
    client: Client,
    basis: Annotated[str, "regime and basis, for example AE-PDPL:23a"],
    src: Annotated[str, "the zone it goes from"],
    dst: Annotated[str, "the zone it goes to, or outside:GB"],
    scope: Annotated[str, "what may go: kind:project/name, the name may hold * and ?"],
    purposes: Annotated[tuple[str, ...], "what for; each is named"],
    document: Annotated[dict[str, str], "each document the basis demands: contract=FILE, or contract=document:…"],
    label: Annotated[str, "the label of the files that are uploaded"] = "confidential",
    more: Annotated[dict[str, str], "expires (90d, or a day), not_before, max_bytes, reason"] = _EMPTY_OPTIONS,
) -> GrantState:
    """Upload the documents of a transfer and propose its grant, in one step.

    Each file becomes a document of the scope's project, named after the file and its content, which approvers open
    before they decide.

    Example:
        falaj zones propose AE-PDPL:23a --src ae-dubai --dst eu-west --scope 'dataset:fraud/*' --purposes fraud \\
            --document contract=contract.pdf --more expires=90d
    """
    project = scope.partition(":")[2].partition("/")[0] or "transfers"
    documents = {
        name: text if text.startswith("document:") else str(upload_document(client, project, name, Path(text), label))
        for name, text in document.items()
    }
    state: GrantState = client.zones.grant(basis, src, dst, scope, purposes, documents, more)
    return state


def upload_document(client: Client, project: str, title: str, path: Path, label: str) -> Ref:
    """Upload one file under a name made of its own name and its digest; the same file again is the same document."""
    import hashlib

    if not path.is_file():
        raise Invalid(f"document {title}: {path} is no file", "give a file, or the name of a stored document")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    file_stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:40] or "document"
    name = Ref("document", project, f"{file_stem}-{digest[:8]}")
    media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(_CHUNK_BYTES), b"")
        data = ByteStream(chunks, path.stat().st_size)
        client.approvals.add_document(name, data, f"{title}: {path.name}"[:200], label=label, media=media)
    return name
