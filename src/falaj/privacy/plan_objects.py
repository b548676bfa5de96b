"""The objects of erasures and answers: how each is named, and the record that decides about it."""

import re
from typing import Any

from falaj.core.ref import Ref
from falaj.govern.destruction_checks import HOLD_RULES
from falaj.govern.records import KeepingDuty
from falaj.privacy.search.person_pattern import PersonPattern
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

_COPIES = frozenset({"dataset", "model", "code"})
_TEXTS = frozenset({"document", "experiment", "flow", "job", "output", "run", "sweep", "trace", "turn"})
"""Kinds besides versions in whose texts an identifier is replaced."""
_RECORDS = _TEXTS | {"artifact", "blob"}
"""Kinds besides versions that a duty may keep; a file of a run is restricted with its run."""
REDACTED = "[erased]"
_FILE_OWNERS = ("run", "output", "trace")
_GONE = frozenset({"deleted", "removed"})
CHECKPOINTS = "checkpoints"
JOB_PARTS = ("log", "files", CHECKPOINTS)
"""What is kept of a job in folders: its log and files lie in those of its attempts."""
_JOB_FILES = re.compile(rf"({'|'.join(JOB_PARTS)}) of (job:\S+)")


def find_record(tx: LedgerReader, name: str) -> LedgerRecord | None:
    """The record that an object of a plan is kept in, if it was not deleted; None for views, endpoints and keys."""
    if (version := version_of(name)) is not None:
        record = tx.get(version)
        return record if record is not None and record.body.get("state") == "live" else None
    if not is_plain_record(name):
        return None
    if (job := job_of(name)) is not None:
        return tx.get(job)
    ref = Ref.parse(name.partition(" ")[0])
    if ref.kind == "artifact":
        owners = (tx.get(Ref(kind, ref.project, ref.name.partition(".")[0])) for kind in _FILE_OWNERS)
        return next(filter(None, owners), None) if tx.get(ref.bare) is not None else None
    record = tx.get(ref if ref.kind == "blob" else ref.bare)
    is_gone = ref.kind in ("blob", "document") and record is not None and record.body.get("state") in _GONE
    return None if is_gone else record


def has_texts(name: str) -> bool:
    """True for a version, and for another record in whose texts an identifier can be replaced."""
    return version_of(name) is not None or name.partition(":")[0] in _TEXTS


def redact_texts(value: Any, pattern: PersonPattern) -> Any:
    """A value with the identifier replaced in every text and every name of a field."""
    if isinstance(value, str):
        return pattern.in_text.sub(REDACTED, value)
    if isinstance(value, dict):
        return {redact_texts(key, pattern): redact_texts(item, pattern) for key, item in value.items()}
    return [redact_texts(item, pattern) for item in value] if isinstance(value, list | tuple) else value


def is_plain_record(name: str) -> bool:
    """True for an object of a plan that is no version, and that a duty may keep."""
    return name.partition(":")[0] in _RECORDS or job_of(name) is not None


def job_of(name: str) -> Ref | None:
    """The job whose log, files or checkpoints an object of a plan is; None for every other object."""
    match = _JOB_FILES.fullmatch(name)
    return Ref.parse(match[2]) if match is not None else None


def list_alike(record: LedgerRecord, name: str) -> frozenset[str]:
    """The objects of plans that are restricted by the same record as this one."""
    if record.key.kind != "job":
        return frozenset({name})
    job = str(record.ref.bare)
    return frozenset({name, job, *(f"{part} of {job}" for part in JOB_PARTS)})


def is_kept_by(name: str, duty: KeepingDuty) -> bool:
    """True when a duty on its record keeps an object. Files of jobs are swept after some days, so no statutory period
    keeps them: only holds and breaches do, and requests for a copy."""
    return job_of(name) is None or duty.rule in (*HOLD_RULES, "request")


def version_of(name: str) -> Ref | None:
    """The version that an object of a plan is; None for views, endpoints and keys."""
    kind, _, rest = name.partition(":")
    return Ref.parse(name) if kind in _COPIES and "@v" in rest else None


def zones_of(record: LedgerRecord | None) -> tuple[str, ...]:
    """The zones in which the bytes of a record lie."""
    if record is None:
        return ()
    return tuple(map(str, record.body.get("zones") or ((record.zone,) if record.zone else ())))
