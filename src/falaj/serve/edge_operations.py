"""Endpoints that go out: a manifest signed for a bundle, and what edge servers counted and kept brought back."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, CorruptData, Invalid
from falaj.core.operation import operation
from falaj.core.ports import SeriesStore
from falaj.core.ref import Ref
from falaj.drift.tally_encoding import join_encoded
from falaj.govern.keyring import Keyring
from falaj.serve import edge_files, endpoint_repository, serving_checks
from falaj.serve.drift_counts import DriftCountRow, DriftCounts
from falaj.serve.request_counts import EDGE_ARM, CountRow, RequestCounts, latency_bucket
from falaj.serve.request_journal import JSON_ENCODING, JournalRow, RequestJournal
from falaj.serve.sealed_blocks import RowOwner
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

MAX_KEYS, MAX_UPLOAD_BYTES = 100, 8 << 20
SIGNED_PREFIX = b"falaj edge bundle 1\n"
"""What is signed begins so: no other signature of this key can be taken for one of a bundle."""


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """What the platform says of a bundle, signed."""

    manifest: str
    signature: str
    """Over the manifest: ECDSA, P-256 with SHA-256, in hex."""
    key: str
    """The public key, as PEM."""
    texts: Mapping[str, str]
    """Small files of the bundle, by name."""


@dataclass(frozen=True, slots=True)
class EdgeSyncResult:
    """What came in of what an edge server told."""

    ref: Ref
    requests: int
    """Of the requests it kept: those that were not here already."""
    counts: int


class EdgeOperations:
    """Verbs of bundles. The other parts of the desk give it these."""

    _ledger: Ledger
    keyring: Keyring
    series: Callable[[], SeriesStore]

    @cached_property
    def counts(self) -> RequestCounts:
        """What gateways and edge servers counted."""
        return RequestCounts(self.series, self._ledger)

    @cached_property
    def journal(self) -> RequestJournal:
        """What they kept of requests."""
        return RequestJournal(self.series, self._ledger)

    @cached_property
    def sketches(self) -> DriftCounts:
        """What replicas and edge servers counted of inputs and answers."""
        return DriftCounts(self.series, self._ledger)

    @operation(reads=("endpoint",), group="move")
    def pack(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        keys: Annotated[tuple[str, ...], "SHA-256 of each token that may call the edge server"],
        to: Annotated[str, "where it goes, as those who read the log shall see it"],
        revision: Annotated[int, "which revision; the one with the traffic when 0"] = 0,
    ) -> SignedManifest:
        """Say that you carry an endpoint out, and have its manifest signed. `falaj serve bundle` does this.

        Example:
            falaj serve pack endpoint:fraud/score --keys 9f86d0… --to "branch 12"
        """
        if not 0 < len(keys) <= MAX_KEYS or not all(map(_is_hash, keys)) or not 0 < len(to) <= 500:
            raise Invalid("a bundle needs a key and a place", f"1 to {MAX_KEYS} SHA-256 in hex, and where it goes")
        with self._ledger.write(ctx) as writer:
            record = writer.need(endpoint.bare)
            revision_fields = endpoint_repository.find_revision(record.body, revision or record.body["current"])
            if revision_fields is None or revision_fields.get("features") or revision_fields.get("code"):
                raise Conflict(*_unfit_error(revision_fields, endpoint))
            model = serving_checks.check_servable(
                writer, ctx, Ref.parse(revision_fields["model"]), revision_fields["stage"], revision_fields["root"]
            )
            if serving_checks.is_exported_program(model):
                raise Conflict(*_unfit_error(revision_fields, endpoint))
            ctx.permit("read", str(record.ref.bare), record.body["zone"])
            texts = _bundle_texts(record, revision_fields, model)
            manifest = _build_manifest(ctx, record, (revision_fields, model), texts, keys)
            signer = self.keyring.model_signer(ctx.tenant, record.body["zone"])
            digest = hashlib.sha256(manifest.encode()).hexdigest()
            writer.emit(
                "serve.pack", record.ref, (model.ref,), revision=revision_fields["number"], to=to, manifest=digest
            )
        return SignedManifest(manifest, _sign_manifest(signer, manifest), _public_key_pem(signer), texts)

    @operation(reads=("endpoint",), group="write")
    def absorb(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        bundle: Annotated[str, "the id of the bundle that tells"],
        lines: Annotated[str, "lines of its journal and counts, as JSON"],
    ) -> EdgeSyncResult:
        """Take in what an edge server counted and kept; what is here already is left out. `falaj serve sync` does it.

        Example:
            falaj serve absorb endpoint:fraud/score 018f3a --lines @lines.jsonl
        """
        if len(lines) > MAX_UPLOAD_BYTES or not 0 < len(bundle) <= 100:
            raise Invalid(f"{len(lines)} bytes at once", f"at most {MAX_UPLOAD_BYTES}, with the id of a bundle")
        lines_decoded = [_decode_object(line) for line in lines.splitlines() if line.strip()]
        with self._ledger.write(ctx) as writer:
            record = writer.need(endpoint.bare)
            owner = RowOwner(record.key.tenant, record.ref.bare, record.body["zone"])
            known_revisions = {item["number"] for item in record.body["revisions"]}
            rows = [_to_journal_row(item) for item in lines_decoded if "inputs" in item]
            count_rows = [_to_count_row(item, owner, bundle) for item in lines_decoded if "requests" in item]
            tallies = [_to_drift_row(item, bundle) for item in lines_decoded if "tally" in item]
            mentioned_revisions = (
                {row.revision for row in rows}
                | {row.revision for row in count_rows}
                | {row.revision for row in tallies}
            )
            if unknown_revisions := sorted(mentioned_revisions - known_revisions):
                raise Invalid(
                    f"{endpoint.bare} has no revision {unknown_revisions[0]}", "sync it to the endpoint it is of"
                )
            written_times = [
                row.at for row in self.counts.rows(owner.tenant, owner.ref, 0.0) if row.gateway == f"edge-{bundle}"
            ]
            new_counts = [row for row in count_rows if row.at > max(written_times, default=0.0)]
            self.counts.append(new_counts)
            self.sketches.append(owner, tallies)
            kept_count = self.journal.append(owner, rows, skips_existing=True)
            writer.emit("serve.absorb", record.ref, requests=kept_count, counts=len(new_counts), bundle=bundle)
        return EdgeSyncResult(record.ref.bare, kept_count, len(new_counts))


def _bundle_texts(
    record: LedgerRecord, revision_fields: endpoint_repository.RecordFields, model: LedgerRecord
) -> dict[str, str]:
    runtime = str((model.body.get("seen") or {}).get("format", "onnx"))
    name = endpoint_repository.public_name(record.ref.bare)
    return {
        "requirements.txt": edge_files.render_requirements(runtime),
        "README.md": edge_files.render_readme(name, revision_fields["model"], revision_fields["number"]),
    }


def _build_manifest(
    ctx: CallContext,
    record: LedgerRecord,
    revision_and_model: tuple[endpoint_repository.RecordFields, LedgerRecord],
    texts: Mapping[str, str],
    keys: tuple[str, ...],
) -> str:
    """What the bundle is, with every file in it."""
    revision_fields, model = revision_and_model
    contents = {f"model/{path}": str(digest) for path, digest in model.body["files"].items()}
    contents |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    contents[edge_files.SERVER_FILE] = hashlib.sha256(edge_files.build_server_archive()).hexdigest()
    manifest_fields: dict[str, Any] = {
        "format": edge_files.BUNDLE_FORMAT,
        "id": ctx.request,
        "endpoint": str(record.ref.bare),
        "name": endpoint_repository.public_name(record.ref.bare),
        "revision": revision_fields["number"],
        "model": revision_fields["model"],
        "root": revision_fields["root"],
        "stage": revision_fields["stage"],
        "label": to_plain(record.label),
        "zone": record.body["zone"],
        "sample": record.body["rules"]["sample"],
        "made_at": ctx.now(),
        "made_by": ctx.actor.behalf or ctx.actor.id,
        "keys": sorted(keys),
        "signature": model.body["signature"],
        "files": contents,
    }
    return json.dumps(manifest_fields, sort_keys=True, indent=1)


def _unfit_error(revision_fields: endpoint_repository.RecordFields | None, endpoint: Ref) -> tuple[str, str, Ref]:
    if revision_fields is None:
        return f"{endpoint.bare} has no such revision", "falaj serve show lists them", endpoint
    if revision_fields.get("features"):
        hint = "deploy it with --raw and send the model's own inputs"
        return f"revision {revision_fields['number']} reads features, which the edge has none of", hint, endpoint
    return (
        f"revision {revision_fields['number']} runs code of its own",
        "export the model to ONNX: falaj optimize",
        endpoint,
    )


def _sign_manifest(signer: Any, manifest: str) -> str:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    signature: bytes = signer.sign(SIGNED_PREFIX + manifest.encode(), ec.ECDSA(hashes.SHA256()))
    return signature.hex()


def _public_key_pem(signer: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem_bytes: bytes = signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem_bytes.decode()


def _is_hash(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _decode_object(line: str) -> dict[str, Any]:
    try:
        decoded = json.loads(line)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise Invalid(f"a line that is no object: {line[:60]!r}", "sync the folder as the server left it")
    return decoded


def _to_journal_row(line: Mapping[str, Any]) -> JournalRow:
    """A line of an edge server's journal, as gateways write theirs. What names no request is named by what it holds."""
    digest = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()[:24]
    try:
        logged_at, version, status = _parse_time(line["at"]), int(line["version"]), int(line["status"])
        sent_fields, answered_fields = (
            {"inputs": _to_list_tensors(line["inputs"])},
            {"outputs": _to_list_tensors(line.get("outputs") or ())},
        )
        latency_us = int(line["latency_us"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Invalid("a line of a journal is not whole", "sync the folder as the server left it") from error
    bodies = (json.dumps(sent_fields).encode(), json.dumps(answered_fields).encode())
    return JournalRow(
        logged_at,
        str(line.get("id") or digest),
        "",
        EDGE_ARM,
        version,
        status,
        latency_us,
        EDGE_ARM,
        *bodies,
        JSON_ENCODING,
    )


def _to_drift_row(line: Mapping[str, Any], bundle: str) -> DriftCountRow:
    """What an edge server counted of its model. That it fits the profile is seen when it is compared."""
    import base64

    try:
        started_at, ended_at, revision, sequence_number = (
            _parse_time(line["at"]),
            _parse_time(line["until"]),
            int(line["version"]),
            int(line["n"]),
        )
        process_id, profile = str(line["life"]), str(line["profile"])
        data = base64.b64decode(line["tally"], validate=True)
        if not (
            _is_hash(profile)
            and started_at <= ended_at
            and 0 < sequence_number < 1 << 48
            and process_id.isalnum()
            and len(process_id) <= 32
        ):
            raise ValueError(process_id)
        join_encoded([data])
    except (KeyError, TypeError, ValueError, OverflowError, CorruptData) as error:
        raise Invalid("a line of a tally is not whole", "sync the folder as the server left it") from error
    bundle_digest = hashlib.sha256(bundle.encode()).hexdigest()[:16]
    return DriftCountRow(
        started_at, ended_at, revision, f"edge-{bundle_digest}.{process_id}", sequence_number, profile, data
    )


def _parse_time(value: Any) -> float:
    unix_time = float(value)
    if not 0 < unix_time < 1e11:
        raise ValueError(unix_time)
    return unix_time


def _to_list_tensors(tensors: Any) -> list[dict[str, Any]]:
    """Tensors with raw bytes as tensors with lists."""
    import base64

    import numpy as np

    from falaj.oip.tensors import NUMPY_TYPES, OutputTensor, to_plain_values

    list_tensors = []
    for tensor in tensors:
        name, datatype, shape = str(tensor["name"]), str(tensor["datatype"]), [int(size) for size in tensor["shape"]]
        if datatype == "BYTES":
            data: Any = [base64.b64decode(text).decode(errors="replace") for text in tensor["raw"]]
        else:
            array = np.frombuffer(base64.b64decode(tensor["raw"]), NUMPY_TYPES.get(datatype, "<u2"))
            data = to_plain_values(OutputTensor(name, datatype, tuple(shape), array))
        list_tensors.append({"name": name, "datatype": datatype, "shape": shape, "data": data})
    return list_tensors


def _to_count_row(line: Mapping[str, Any], owner: RowOwner, bundle: str) -> CountRow:
    try:
        counted_at, revision = _parse_time(line["at"]), int(line["version"])
        requests, errors = int(line["requests"]), int(line["errors"])
        mean_us = int(line["mean_us"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Invalid("a line of counts is not whole", "sync the folder as the server left it") from error
    if min(errors, revision, mean_us, requests - errors) < 0:
        raise Invalid("a count below zero", "sync the folder as the server left it")
    latency_us = {latency_bucket(mean_us): requests - errors}
    row_fields = (owner.tenant, str(owner.ref), EDGE_ARM, revision, counted_at, requests, errors, latency_us, 0, 0)
    return CountRow(*row_fields, f"edge-{bundle}", owner.zone)
