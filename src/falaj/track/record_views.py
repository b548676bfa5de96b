"""How records are read as experiments and runs, and what they are looked up by."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.store.codec import from_plain
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord
from falaj.track.records import Experiment, LoggedModelRef, Metric, Run, UsedData

DELETED_WITH_EXPERIMENT = "along"
"""What a run says of itself that was deleted with its experiment."""
_FIND_PAGE = 1_000


def require_record(reader: LedgerReader, ref: Ref, kind: str) -> LedgerRecord:
    """The record of a run or an experiment, whatever revision was named; NotFound when there is none."""
    if ref.kind != kind:
        raise Invalid(f"{ref} is no {kind}", f"name one, for example {kind}:fraud/…", ref)
    record = reader.get(ref.bare)
    if record is None:
        raise NotFound(
            f"there is no {ref}", f"falaj track {'list' if kind == 'run' else 'experiments'} shows them", ref
        )
    return record


def find_all_records(reader: LedgerReader, kind: str, **criteria: Any) -> Iterator[LedgerRecord]:
    """Every record that `find` gives, page after page."""
    after = ""
    while True:
        page = reader.find(kind, after=after, limit=_FIND_PAGE, **criteria)
        yield from page.records
        after = page.next
        if not after:
            return


def list_used_refs(run: LedgerRecord) -> tuple[Ref, ...]:
    """The things of ours that a run used, as exactly as they were named."""
    used_refs = [Ref.parse(used_data["ref"]) for used_data in run.body["inputs"] if used_data.get("ref")]
    return tuple(dict.fromkeys(ref for ref in used_refs if ref.pinned))


def to_experiment(record: LedgerRecord) -> Experiment:
    """A record as its readers see it."""
    body = record.body
    return Experiment(
        record.ref.bare,
        body["id"],
        body["title"],
        body["tags"],
        body["state"],
        body["made_at"],
        record.at,
        record.author,
    )


def to_run(record: LedgerRecord, metrics: Mapping[str, Metric]) -> Run:
    """A record as its readers see it, with the newest of each metric."""
    body = record.body
    return Run(
        record.ref.bare,
        Ref.parse(body["experiment"]),
        body["experiment_id"],
        body["title"],
        body["status"],
        record.author,
        body["started"],
        body["ended"],
        body["params"],
        body["tags"],
        metrics,
        tuple([from_plain(UsedData, used_data) for used_data in body["inputs"]]),
        body["state"],
        record.label,
        record.zone,
        tuple([LoggedModelRef(*logged_model) for logged_model in body.get("outputs", ())]),
    )


def build_run_terms(body: Mapping[str, Any]) -> dict[str, str]:
    """What a run is looked up by."""
    deletion_terms = {DELETED_WITH_EXPERIMENT: "yes"} if body.get(DELETED_WITH_EXPERIMENT) else {}
    return {"id": body["id"], "experiment": body["experiment_id"], "state": body["state"], **deletion_terms}


def compute_title_digest(title: str) -> str:
    """A title as the index knows it: what people call things is not for the store's operator."""
    return sha256(title.encode("utf-8", "surrogatepass")).hexdigest()


def tenant_system_context(tenant: str) -> CallContext:
    """The house looking for itself at what a tenant has; what a caller may see of it is decided elsewhere."""
    return CallContext(Actor("house", SYSTEM_TENANT, kind="service"), zone="", tenant=tenant)
