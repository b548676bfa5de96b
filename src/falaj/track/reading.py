"""How records are read as experiments and runs, and what they are looked up by."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.store.codec import from_plain
from falaj.store.ledger import Reader
from falaj.store.records import Record
from falaj.track.records import Experiment, MadeModel, Metric, Run, UsedData

ALONG = "along"
"""What a run says of itself that was deleted with its experiment."""
_PAGE = 1_000


def need(tx: Reader, ref: Ref, kind: str) -> Record:
    """The record of a run or an experiment, whatever revision was named; NotFound when there is none."""
    if ref.kind != kind:
        raise Invalid(f"{ref} is no {kind}", f"name one, for example {kind}:fraud/…", ref)
    record = tx.get(ref.bare)
    if record is None:
        raise NotFound(
            f"there is no {ref}", f"falaj track {'list' if kind == 'run' else 'experiments'} shows them", ref
        )
    return record


def find_all(tx: Reader, kind: str, **where: Any) -> Iterator[Record]:
    """Every record that `find` gives, page after page."""
    after = ""
    while True:
        page = tx.find(kind, after=after, limit=_PAGE, **where)
        yield from page.records
        after = page.next
        if not after:
            return


def made_from(run: Record) -> tuple[Ref, ...]:
    """The things of ours that a run used, as exactly as they were named."""
    used = [Ref.parse(one["ref"]) for one in run.body["inputs"] if one.get("ref")]
    return tuple(dict.fromkeys(ref for ref in used if ref.pinned))


def as_experiment(record: Record) -> Experiment:
    """A record as its readers see it."""
    body = record.body
    return Experiment(
        record.ref.bare, body["id"], body["title"], body["tags"], body["state"], body["made_at"], record.at,
        record.author,
    )  # fmt: skip


def as_run(record: Record, metrics: Mapping[str, Metric]) -> Run:
    """A record as its readers see it, with the newest of each metric."""
    body = record.body
    return Run(
        record.ref.bare, Ref.parse(body["experiment"]), body["experiment_id"], body["title"], body["status"],
        record.author, body["started"], body["ended"], body["params"], body["tags"], metrics,
        tuple([from_plain(UsedData, used) for used in body["inputs"]]), body["state"], record.label, record.zone,
        tuple([MadeModel(*made) for made in body.get("outputs", ())]),
    )  # fmt: skip


def terms_of(body: Mapping[str, Any]) -> dict[str, str]:
    """What a run is looked up by."""
    along = {ALONG: "yes"} if body.get(ALONG) else {}
    return {"id": body["id"], "experiment": body["experiment_id"], "state": body["state"], **along}


def digest_of(title: str) -> str:
    """A title as the index knows it: what people call things is not for the store's operator."""
    return sha256(title.encode("utf-8", "surrogatepass")).hexdigest()


def house(tenant: str) -> Context:
    """The house looking for itself at what a tenant has; what a caller may see of it is decided elsewhere."""
    return Context(Actor("house", HOUSE, kind="service"), zone="", tenant=tenant)
