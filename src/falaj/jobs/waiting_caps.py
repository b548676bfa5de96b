"""Caps on waiting jobs, which queues declare: in all, and of one person.

Jobs are counted from a snapshot before one is written, so that submissions of the same moment do not conflict; they may
exceed a cap by as many.
"""

from collections.abc import Iterator, Mapping

from falaj.core.errors import QuotaExceeded
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.fleet.queues import list_rules_to_root
from falaj.fleet.records import QueueRule
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord


def check_waiting_caps(
    ledger: Ledger, tx: LedgerReader, rules: Mapping[str, QueueRule], queue: str, submitter: tuple[str, str]
) -> None:
    """Raise QuotaExceeded where one more waiting job of a (tenant, person) exceeds a cap of the queue or one above."""
    for rule in list_rules_to_root(queue, rules):
        if rule.max_waiting is not None:
            waiting = _count(_waiting_below(ledger, tx, rules, rule.name), rule.max_waiting)
            if waiting >= rule.max_waiting:
                raise _exceeded(rule.name, "max_waiting", f"at most {rule.max_waiting} waiting jobs", waiting)
        if rule.max_waiting_per_person is not None:
            tenant, person = submitter
            own = iter_records(tx, "job", tenant, {"live": "1", "by": person})
            waiting = _count((record for record in own if _is_below(record, rule.name)), rule.max_waiting_per_person)
            if waiting >= rule.max_waiting_per_person:
                expected = f"at most {rule.max_waiting_per_person} waiting jobs of {person}"
                raise _exceeded(rule.name, "max_waiting_per_person", expected, waiting)


def _waiting_below(
    ledger: Ledger, tx: LedgerReader, rules: Mapping[str, QueueRule], name: str
) -> Iterator[LedgerRecord]:
    for tenant in list_tenants(ledger):
        for leaf in rules:
            if f"{leaf}/".startswith(f"{name}/"):
                yield from iter_records(tx, "job", tenant, {"live": "1", "queue": leaf})


def _is_below(record: LedgerRecord, queue: str) -> bool:
    return f"{record.body['queue']}/".startswith(f"{queue}/")


def _count(records: Iterator[LedgerRecord], most: int) -> int:
    """How many have no attempt; counting ends at `most`."""
    waiting = 0
    while waiting < most and (record := next(records, None)) is not None:
        waiting += record.body["attempt"] is None
    return waiting


def _exceeded(queue: str, cap: str, expected: str, waiting: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"queue {queue}: expected {expected}, got {waiting + 1}",
        "submit again when some have started, or cancel some: falaj jobs bulk cancel --queue …; "
        f"an operator raises the cap with falaj queues change {queue} --more {cap}=…",
    )
