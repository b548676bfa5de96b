"""Supporting documents: the contracts, authority approvals, consent wordings and policies that a decision rests on.

A document is kept like any other bytes: sealed under the tenant's key in its zone, by content, under a label. Its
record also has the SHA-256 of the plain bytes, so that an approved digest names exactly what approvers could open. A
document is never changed and has no versions: other bytes need another name.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from falaj.core.byte_stream import ByteStream
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid, NotFound, QuotaExceeded, Unavailable
from falaj.core.label import Label
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.store.blob_store import BlobStore
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord, with_next_cursor

RemovalCheck = Callable[[CallContext, LedgerRecord], Sequence[str]]
DOCUMENT_KIND = "document"
MAX_DOCUMENT_BYTES = 64 << 20
MAX_TITLE_CHARS = 200
_EVIDENCE_KIND = re.compile(r"[a-z][a-z-]{0,39}")
_DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SupportingDocument:
    """A stored document: what it is called, the digest that approvals name, and where it lies."""

    STRUCTURE: ClassVar = (
        "name", "title", "digest", "size_bytes", "media", "zones", "label", "author", "added_at", "kind",
    )  # fmt: skip
    COLUMNS: ClassVar = ("name", "title", "kind", "size_bytes", "digest", "author", "added_at")

    name: Ref
    title: str
    digest: str
    """SHA-256 of the plain bytes, as `sha256:…`."""
    size_bytes: int
    media: str
    zones: tuple[str, ...]
    label: Label
    author: str
    added_at: float
    kind: str = ""
    """What it was declared to be, in a word of docs/evidence.md such as training; evidence packs go by this."""
    more: str = ""
    """On the last of a list that goes on: `after` of what follows."""


class DocumentOperations:
    """A part of the approvals service: add, list and open documents."""

    _ledger: Ledger
    _blobs: BlobStore | None
    _removal_checks: tuple[RemovalCheck, ...] = ()

    @operation(writes=("name",), has_outside_effects=True)
    def add_document(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "what to call it, for example document:fraud/processor-contract"],
        data: Annotated[ByteStream, "the file"],
        title: Annotated[str, "what it is, for those who decide"],
        label: Annotated[Label | None, "what the law says of it, for example confidential"] = None,
        media: Annotated[str, "its media type"] = "application/pdf",
        kind: Annotated[str, "what it is evidence of, in one word of docs/evidence.md, for example training"] = "",
    ) -> SupportingDocument:
        """Keep a document that decisions rest on: a contract, an authority's approval, a consent wording, a policy.

        The bytes are encrypted and never change; approvers open them before they decide, and evidence packs carry
        them. The same bytes under the same name again are the same document.

        Example:
            falaj approvals add-document document:fraud/processor-contract contract.pdf --title "Contract with the processor"
        """  # noqa: E501 - a command line is one line
        del label  # the guard has joined it into ctx.label
        _validate_title(name, title)
        if kind and not _EVIDENCE_KIND.fullmatch(kind):
            raise Invalid(f"kind {kind[:40]!r}: expected lower-case letters and hyphens", "for example risk-register")
        hasher, blobs = hashlib.sha256(), self.require_blob_store()
        chunks = _hash_chunks(data, hasher)
        blob = blobs.put(ctx, str(name.bare), ctx.zone, chunks, ctx.permit("write", str(name.bare), ctx.zone))
        digest = f"sha256:{hasher.hexdigest()}"

        def put_record(tx: LedgerWriter) -> SupportingDocument:
            stored = tx.get(name.bare)
            if stored is not None:
                is_other = stored.body["sha256"] != digest or (kind and stored.body.get("kind", "") != kind)
                if is_other or stored.body.get("state") == "removed":
                    raise Conflict(
                        f"{name.bare} already names other or removed bytes, or bytes of another kind",
                        "a document never changes: add this one under another name",
                        name,
                    )
                return _read_document(stored)
            blobs.hold(tx, ctx, blob.zone, blob.digest)
            body = {
                "digest": blob.digest, "sha256": digest, "size": blob.size, "media": media[:100], "title": title,
                "zones": [blob.zone], "made_at": ctx.now(), "kind": kind,
            }  # fmt: skip
            terms = {"digest": blob.digest, "sha256": digest, f"at.{blob.zone}": "yes"}
            record = tx.put(name.bare, body, zone=blob.zone, terms=terms)
            tx.emit("approvals.add_document", record.ref, digest=digest, size_bytes=blob.size, title=title, kind=kind)
            return _read_document(record)

        return self._ledger.retry(ctx, put_record)

    @operation(reads=("name",), group="read", has_outside_effects=True)
    def open_document(self, ctx: CallContext, name: Annotated[Ref, "which document"]) -> ByteStream:
        """Read a document, as approvers do before they decide. That it was opened is recorded.

        Example:
            falaj approvals open-document document:fraud/processor-contract --out contract.pdf
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(_require_document_ref(name))
        if record.body.get("state") == "removed":
            raise NotFound(f"{name.bare} was removed", "its digest and the reason are in the log", name)
        zone = ctx.zone if ctx.zone in record.body["zones"] else record.body["zones"][0]
        permit = ctx.permit("read", str(name.bare), zone)
        blobs = self.require_blob_store()
        return ByteStream(blobs.get(ctx, str(name.bare), zone, record.body["digest"], permit), int(record.body["size"]))

    @operation(writes=("name",), group="erase")
    def remove_document(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which document"],
        reason: Annotated[str, "why, for the log"],
    ) -> Ref:
        """Remove a document: it can no longer be opened, and its bytes go with the next collection.

        Refused while a law, a hold or a breach keeps it, or a transfer grant that is in force or waits rests on it.

        Example:
            falaj approvals remove-document document:fraud/signed-form-71 --reason "erasure request"
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(_require_document_ref(name))
            reasons = [removal_reason for check in self._removal_checks for removal_reason in check(ctx, record)]
            if reasons:
                raise Conflict(f"{name.bare} must be kept: {'; '.join(reasons)[:500]}", "remove it when that has ended")
            tx.put(name.bare, {**record.body, "state": "removed", "zones": []}, rev=record.rev, terms={})
            tx.emit("approvals.remove_document", record.ref, digest=record.body["sha256"], reason=reason)
        return name.bare

    def check_removal(self, check: RemovalCheck) -> None:
        """Ask `check` before a document is removed; it returns what keeps the document."""
        self._removal_checks += (check,)

    @operation()
    def documents(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        digest: Annotated[str, "only the one with this digest, sha256:…"] = "",
        limit: Annotated[int, "the largest number of documents"] = 100,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[SupportingDocument, ...]:
        """List the documents that decisions rest on.

        Example:
            falaj approvals documents --project fraud
        """
        terms = {"sha256": digest} if digest else {}
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                DOCUMENT_KIND, project=project, terms=terms, scopes=ctx.cells(DOCUMENT_KIND), after=after, limit=limit
            )
        live = [record for record in page.records if record.body.get("state") != "removed"]
        return with_next_cursor([_read_document(record) for record in live], page.next)

    def require_blob_store(self) -> BlobStore:
        if self._blobs is None:
            raise Unavailable("this service was opened without a byte store", "documents need one")
        return self._blobs


def resolve_documents(tx: LedgerReader, documents: Mapping[str, str]) -> dict[str, LedgerRecord]:
    """Return the stored document behind each name. A value is a document's name or the digest of a stored one."""
    return {name: find_document(tx, name, text) for name, text in documents.items()}


def find_document(tx: LedgerReader, purpose: str, text: str) -> LedgerRecord:
    """Return the stored document that `text` names, or raise Invalid: a digest alone proves nothing to an approver."""
    if text.startswith(f"{DOCUMENT_KIND}:"):
        record = tx.get(Ref.parse(text).bare)
        if record is not None and record.body.get("state") != "removed":
            return record
        raise Invalid(f"document {purpose[:60]}: {text[:120]} does not exist", _upload_hint(text))
    if not _DIGEST_PATTERN.fullmatch(text):
        raise Invalid(
            f"document {purpose[:60]}: expected document:project/name or the sha256 digest of a stored document, "
            f"got {text[:40]!r}",
            _upload_hint(),
        )
    records = tx.find(DOCUMENT_KIND, terms={"sha256": text}, limit=1).records
    if not records:
        raise Invalid(
            f"document {purpose[:60]}: no stored document has the digest {text[:20]}…; approvers could not read it",
            _upload_hint(),
        )
    return records[0]


def _upload_hint(name: str = "document:fraud/contract") -> str:
    return f"falaj approvals add-document {name[:120]} FILE --title …"


def _hash_chunks(chunks: Iterable[bytes], hasher: "hashlib._Hash") -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_DOCUMENT_BYTES:
            raise QuotaExceeded(
                f"the document is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", "split it, or store it as a blob"
            )
        hasher.update(chunk)
        yield chunk


def _validate_title(name: Ref, title: str) -> None:
    _require_document_ref(name)
    if name.version:
        raise Invalid(f"{name}: a document has no versions", f"leave out @{name.version}", name)
    if not title.strip() or len(title) > MAX_TITLE_CHARS:
        raise Invalid(f"document title: expected 1 to {MAX_TITLE_CHARS} characters, got {len(title)}", "say what it is")


def _require_document_ref(name: Ref) -> Ref:
    if name.kind != DOCUMENT_KIND:
        raise Invalid(
            f"{name} is a {name.kind}: expected a document", f"for example {DOCUMENT_KIND}:fraud/contract", name
        )
    return name.bare


def _read_document(record: LedgerRecord) -> SupportingDocument:
    body = record.body
    return SupportingDocument(
        record.ref.bare, body["title"], body["sha256"], body["size"], body["media"], tuple(body["zones"]),
        record.label, record.author, body["made_at"], body.get("kind", ""),
    )  # fmt: skip
