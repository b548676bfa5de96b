"""Endpoints that go out: a manifest signed for a bundle, and what edge servers counted and kept brought back."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Corrupt, Invalid
from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.drift.packing import joined
from falaj.govern.keys import Keyring
from falaj.serve import books, edge_files, fitness
from falaj.serve.blocks import Whose
from falaj.serve.counts import EDGE, Counted, Counts, bucket
from falaj.serve.journal import JSON, Journal, Logged
from falaj.serve.sketches import Sketched, Sketches
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger
from falaj.store.records import Record

MOST_KEYS, MOST_BYTES = 100, 8 << 20
SIGNED = b"falaj edge bundle 1\n"
"""What is signed begins so: no other signature of this key can be taken for one of a bundle."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What the platform says of a bundle, signed."""

    manifest: str
    signature: str
    """Over the manifest: ECDSA, P-256 with SHA-256, in hex."""
    key: str
    """The public key, as PEM."""
    texts: Mapping[str, str]
    """Small files of the bundle, by name."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What came in of what an edge server told."""

    ref: Ref
    requests: int
    """Of the requests it kept: those that were not here already."""
    counts: int


class Edges:
    """Verbs of bundles. The other parts of the desk give it these."""

    _ledger: Ledger
    keyring: Keyring
    series: Callable[[], Series]

    @cached_property
    def counts(self) -> Counts:
        """What gateways and edge servers counted."""
        return Counts(self.series, self._ledger)

    @cached_property
    def journal(self) -> Journal:
        """What they kept of requests."""
        return Journal(self.series, self._ledger)

    @cached_property
    def sketches(self) -> Sketches:
        """What replicas and edge servers counted of inputs and answers."""
        return Sketches(self.series, self._ledger)

    @verb(reads=("endpoint",), group="move")
    def pack(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        keys: Annotated[tuple[str, ...], "SHA-256 of each token that may call the edge server"],
        to: Annotated[str, "where it goes, as those who read the log shall see it"],
        revision: Annotated[int, "which revision; the one with the traffic when 0"] = 0,
    ) -> Packed:
        """Say that you carry an endpoint out, and have its manifest signed. `falaj serve bundle` does this.

        Example:
            falaj serve pack endpoint:fraud/score --keys 9f86d0… --to "branch 12"
        """
        if not 0 < len(keys) <= MOST_KEYS or not all(map(_is_hash, keys)) or not 0 < len(to) <= 500:
            raise Invalid("a bundle needs a key and a place", f"1 to {MOST_KEYS} SHA-256 in hex, and where it goes")
        with self._ledger.write(ctx) as tx:
            record = tx.need(endpoint.bare)
            kept = books.revision_at(record.body, revision or record.body["current"])
            if kept is None or kept.get("features") or kept.get("code"):
                raise Conflict(*_unfit(kept, endpoint))
            model = fitness.check(tx, ctx, Ref.parse(kept["model"]), kept["stage"], kept["root"])
            if fitness.exported(model):
                raise Conflict(*_unfit(kept, endpoint))
            ctx.permit("read", str(record.ref.bare), record.body["zone"])
            texts = _texts(record, kept, model)
            manifest = _manifest(ctx, record, (kept, model), texts, keys)
            signer = self.keyring.model_signer(ctx.tenant, record.body["zone"])
            digest = hashlib.sha256(manifest.encode()).hexdigest()
            tx.emit("serve.pack", record.ref, (model.ref,), revision=kept["number"], to=to, manifest=digest)
        return Packed(manifest, _signed(signer, manifest), _pem(signer), texts)

    @verb(reads=("endpoint",), group="write")
    def absorb(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        bundle: Annotated[str, "the id of the bundle that tells"],
        lines: Annotated[str, "lines of its journal and counts, as JSON"],
    ) -> Synced:
        """Take in what an edge server counted and kept; what is here already is left out. `falaj serve sync` does it.

        Example:
            falaj serve absorb endpoint:fraud/score 018f3a --lines @lines.jsonl
        """
        if len(lines) > MOST_BYTES or not 0 < len(bundle) <= 100:
            raise Invalid(f"{len(lines)} bytes at once", f"at most {MOST_BYTES}, with the id of a bundle")
        found = [_object(line) for line in lines.splitlines() if line.strip()]
        with self._ledger.write(ctx) as tx:
            record = tx.need(endpoint.bare)
            whose = Whose(record.key.tenant, record.ref.bare, record.body["zone"])
            known = {one["number"] for one in record.body["revisions"]}
            rows = [_logged(one) for one in found if "inputs" in one]
            told = [_counted(one, whose, bundle) for one in found if "requests" in one]
            tallies = [_sketched(one, bundle) for one in found if "tally" in one]
            said = {row.revision for row in rows} | {row.revision for row in told} | {row.revision for row in tallies}
            if unknown := sorted(said - known):
                raise Invalid(f"{endpoint.bare} has no revision {unknown[0]}", "sync it to the endpoint it is of")
            past = [row.at for row in self.counts.rows(whose.tenant, whose.ref, 0.0) if row.gateway == f"edge-{bundle}"]
            fresh = [row for row in told if row.at > max(past, default=0.0)]
            self.counts.append(fresh)
            self.sketches.append(whose, tallies)
            kept = self.journal.append(whose, rows, once=True)
            tx.emit("serve.absorb", record.ref, requests=kept, counts=len(fresh), bundle=bundle)
        return Synced(record.ref.bare, kept, len(fresh))


def _texts(record: Record, kept: books.Body, model: Record) -> dict[str, str]:
    runtime = str((model.body.get("seen") or {}).get("format", "onnx"))
    name = books.public(record.ref.bare)
    return {
        "requirements.txt": edge_files.requirements(runtime),
        "README.md": edge_files.readme(name, kept["model"], kept["number"]),
    }


def _manifest(
    ctx: Context, record: Record, of: tuple[books.Body, Record], texts: Mapping[str, str], keys: tuple[str, ...]
) -> str:
    """What the bundle is, with every file in it."""
    kept, model = of
    contents = {f"model/{path}": str(digest) for path, digest in model.body["files"].items()}
    contents |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    contents[edge_files.SERVER] = hashlib.sha256(edge_files.server()).hexdigest()
    plain: dict[str, Any] = {
        "format": edge_files.FORMAT, "id": ctx.request, "endpoint": str(record.ref.bare),
        "name": books.public(record.ref.bare), "revision": kept["number"], "model": kept["model"],
        "root": kept["root"], "stage": kept["stage"], "label": to_plain(record.label), "zone": record.body["zone"],
        "sample": record.body["rules"]["sample"], "made_at": ctx.now(), "made_by": ctx.actor.behalf or ctx.actor.id,
        "keys": sorted(keys), "signature": model.body["signature"], "files": contents,
    }  # fmt: skip
    return json.dumps(plain, sort_keys=True, indent=1)


def _unfit(kept: books.Body | None, endpoint: Ref) -> tuple[str, str, Ref]:
    if kept is None:
        return f"{endpoint.bare} has no such revision", "falaj serve show lists them", endpoint
    if kept.get("features"):
        hint = "deploy it with --raw and send the model's own inputs"
        return f"revision {kept['number']} reads features, which the edge has none of", hint, endpoint
    return f"revision {kept['number']} runs code of its own", "export the model to ONNX: falaj optimize", endpoint


def _signed(signer: Any, manifest: str) -> str:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    made: bytes = signer.sign(SIGNED + manifest.encode(), ec.ECDSA(hashes.SHA256()))
    return made.hex()


def _pem(signer: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    made: bytes = signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return made.decode()


def _is_hash(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid(f"a line that is no object: {line[:60]!r}", "sync the folder as the server left it")
    return found


def _logged(line: Mapping[str, Any]) -> Logged:
    """A line of an edge server's journal, as gateways write theirs. What names no request is named by what it holds."""
    digest = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()[:24]
    try:
        at, version, status = _moment(line["at"]), int(line["version"]), int(line["status"])
        sent, given = ({"inputs": _plain(line["inputs"])}, {"outputs": _plain(line.get("outputs") or ())})
        latency_us = int(line["latency_us"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Invalid("a line of a journal is not whole", "sync the folder as the server left it") from error
    bodies = (json.dumps(sent).encode(), json.dumps(given).encode())
    return Logged(at, str(line.get("id") or digest), "", EDGE, version, status, latency_us, EDGE, *bodies, JSON)


def _sketched(line: Mapping[str, Any], bundle: str) -> Sketched:
    """What an edge server counted of its model. That it fits the profile is seen when it is compared."""
    import base64

    try:
        at, until, revision, number = _moment(line["at"]), _moment(line["until"]), int(line["version"]), int(line["n"])
        life, profile = str(line["life"]), str(line["profile"])
        data = base64.b64decode(line["tally"], validate=True)
        if not (_is_hash(profile) and at <= until and 0 < number < 1 << 48 and life.isalnum() and len(life) <= 32):
            raise ValueError(life)
        joined([data])
    except (KeyError, TypeError, ValueError, OverflowError, Corrupt) as error:
        raise Invalid("a line of a tally is not whole", "sync the folder as the server left it") from error
    whose = hashlib.sha256(bundle.encode()).hexdigest()[:16]
    return Sketched(at, until, revision, f"edge-{whose}.{life}", number, profile, data)


def _moment(said: Any) -> float:
    at = float(said)
    if not 0 < at < 1e11:
        raise ValueError(at)
    return at


def _plain(tensors: Any) -> list[dict[str, Any]]:
    """Tensors with raw bytes as tensors with lists."""
    import base64

    import numpy as np

    from falaj.oip.tensors import NUMPY, Made, values_of

    made = []
    for one in tensors:
        name, datatype, shape = str(one["name"]), str(one["datatype"]), [int(size) for size in one["shape"]]
        if datatype == "BYTES":
            data: Any = [base64.b64decode(text).decode(errors="replace") for text in one["raw"]]
        else:
            array = np.frombuffer(base64.b64decode(one["raw"]), NUMPY.get(datatype, "<u2"))
            data = values_of(Made(name, datatype, tuple(shape), array))
        made.append({"name": name, "datatype": datatype, "shape": shape, "data": data})
    return made


def _counted(line: Mapping[str, Any], whose: Whose, bundle: str) -> Counted:
    try:
        at, revision = _moment(line["at"]), int(line["version"])
        requests, errors = int(line["requests"]), int(line["errors"])
        mean_us = int(line["mean_us"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Invalid("a line of counts is not whole", "sync the folder as the server left it") from error
    if min(errors, revision, mean_us, requests - errors) < 0:
        raise Invalid("a count below zero", "sync the folder as the server left it")
    latency_us = {bucket(mean_us): requests - errors}
    whole = (whose.tenant, str(whose.ref), EDGE, revision, at, requests, errors, latency_us, 0, 0)
    return Counted(*whole, f"edge-{bundle}", whose.zone)
