"""Whether work may go on in the name of whoever asked for it. The dispatcher, flows and sweeps ask before they act.

Suspension is no failure: what may not go on is held or stopped, and goes on when the suspension is lifted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from falaj.core.context import SYSTEM_TENANT, Actor
from falaj.core.data import dataclass
from falaj.core.executor import REPLICA_KINDS
from falaj.core.ports import RecordKey
from falaj.core.project_roles import roles_in_project
from falaj.core.ref import Ref
from falaj.fleet.queues import find_stopped, read_rules
from falaj.fleet.records import DRAIN, QueueRule
from falaj.govern.accounts import PROVIDER_NAME_PREFIX, make_person_key, make_tenant_key, make_trust_key
from falaj.govern.sign_ins import read_current_roles, read_sign_in_expiry
from falaj.govern.workload_tokens import WORK_ROLES
from falaj.schedule.model import NEVER
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

RUN_ROLES = WORK_ROLES - {"viewer"}
"""Roles that may run jobs; a run may read as a viewer, too."""
SubmitterKey = tuple[str, str, str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SubmitterStanding:
    """What accounts, tenants, sign-ins and trust rules say at one moment about the work of one submitter."""

    reason: str = ""
    """Why the work may not go on; empty when it may."""
    removed: bool = False
    """True when the account is gone for good: nobody can lift that, so its work is cancelled and not held."""
    person_suspended: bool = False
    """True when the tenant may go on, and only the submitter may not."""
    queue: str = ""
    """The stopped queue, where it is that."""
    restricted_input: str = ""
    """The restricted version that the job reads, where it is that."""
    runs_on: bool = False
    """True when only starts are barred, as in a queue that is held: what runs goes on."""
    expires: float = NEVER
    """When this answer changes without a change of any record: a sign-in that becomes too old."""


def read_submitter(tx: LedgerReader, record: LedgerRecord) -> Actor:
    """Who asked for something, with all the roles that they had then and still have."""
    submitter, tenant = record.body["who"], record.key.tenant
    roles, projects = frozenset(submitter["roles"]), frozenset(submitter["projects"])
    person = tx.key(make_person_key(tenant, submitter["id"]))
    if submitter["id"].startswith(PROVIDER_NAME_PREFIX):
        current, projects = read_current_roles(tx, tenant, submitter["id"])
        roles &= current
    elif person is not None:
        roles &= frozenset(person.body["roles"])
        projects = frozenset(person.body["projects"])
    owns_folder, makers = bool(submitter.get("owns_folder")), tuple(submitter.get("makers", ()))
    return Actor(submitter["id"], tenant, roles=roles, projects=projects, owns_folder=owns_folder, makers=makers)


def read_account_standing(tx: LedgerReader, record: LedgerRecord) -> SubmitterStanding:
    """Whether anything may be done in the name of a record's owner: tenant, account and trust rule."""
    tenant, submitter = record.key.tenant, record.body["who"]
    if is_tenant_suspended(tx, tenant):
        return SubmitterStanding(f"the tenant {tenant} is suspended")
    person = tx.key(make_person_key(tenant, submitter["id"]))
    if person is not None and person.body.get("removed"):
        return SubmitterStanding(f"the account {submitter['id']} was removed", removed=True, person_suspended=True)
    if person is not None and person.body.get("suspended"):
        return SubmitterStanding(f"the account {submitter['id']} is suspended", person_suspended=True)
    if submitter.get("trust") and tx.key(make_trust_key(tenant, submitter["trust"])) is None:
        return SubmitterStanding(f"the build system {submitter['trust']} is trusted no more", person_suspended=True)
    return SubmitterStanding()


def find_bar_reason(tx: LedgerReader, record: LedgerRecord) -> str:
    """Why nothing may be done for whoever asked for something; empty when it may."""
    return read_account_standing(tx, record).reason


def read_job_standing(tx: LedgerReader, record: LedgerRecord) -> SubmitterStanding:
    """Whether attempts of a job may start and run: tenant, account, trust rule, and the role and project it needs."""
    standing = read_account_standing(tx, record)
    if standing.reason:
        return standing
    submitter, submitter_id = read_submitter(tx, record), record.body["who"]["id"]
    expires = (
        read_sign_in_expiry(tx, record.key.tenant, submitter_id)
        if submitter_id.startswith(PROVIDER_NAME_PREFIX)
        else float(NEVER)
    )
    if not roles_in_project(submitter.roles, record.key.project) & RUN_ROLES:
        return SubmitterStanding(
            f"{submitter_id} holds no role any more that may run jobs", expires=expires, person_suspended=True
        )
    if submitter.projects.isdisjoint({"*", record.key.project}):
        reason = f"{submitter_id} is not in the project {record.key.project} any more"
        return SubmitterStanding(reason, expires=expires, person_suspended=True)
    return SubmitterStanding(expires=expires)


class RestrictedInputs:
    """Remembers which versions that jobs read are restricted; each is read once."""

    def __init__(self) -> None:
        self._is_restricted: dict[tuple[str, str], bool] = {}

    def find_standing(
        self, record: LedgerRecord, read: Callable[[RecordKey], LedgerRecord | None]
    ) -> SubmitterStanding:
        """The standing of a job by what it reads: lost while an input or its program is restricted."""
        tenant = record.key.tenant
        for name in _input_names(record):
            if (tenant, name) not in self._is_restricted:
                self._is_restricted[tenant, name] = _is_restricted(tenant, name, read)
            if self._is_restricted[tenant, name]:
                reason = f"{name} is restricted: it may be kept and nothing else"
                return SubmitterStanding(reason, restricted_input=name)
        return SubmitterStanding()

    def forget_changed(self, keys: Iterable[RecordKey]) -> set[tuple[str, str]]:
        """Drop what is remembered of changed versions; gives tenant and name of each version that was."""
        changed = {(key.tenant, str(Ref(key.kind, key.project, key.name, key.version))) for key in keys}
        return {version for version in changed if self._is_restricted.pop(version, None) is not None}

    def forget_inputs(self, record: LedgerRecord) -> None:
        """Drop what is remembered of the versions that a job reads."""
        for name in _input_names(record):
            self._is_restricted.pop((record.key.tenant, name), None)

    def forget_all(self) -> None:
        """Drop everything."""
        self._is_restricted = {}


def reads_any(record: LedgerRecord, versions: Iterable[tuple[str, str]]) -> bool:
    """True when a job reads one of these versions, each given as tenant and name."""
    return any((record.key.tenant, name) in versions for name in _input_names(record))


def _input_names(record: LedgerRecord) -> Iterator[str]:
    yield from record.body["inputs"].values()
    if record.body["code"]:
        yield record.body["code"]


def _is_restricted(tenant: str, name: str, read: Callable[[RecordKey], LedgerRecord | None]) -> bool:
    ref = Ref.parse(name)
    source = read(RecordKey(tenant, ref.kind, ref.project, ref.name, ref.version)) if ref.pinned else None
    return source is not None and source.restricted


class StandingReader:
    """Reads the standings of many jobs in one transaction; each submitter and each input is looked up once."""

    def __init__(self, tx: LedgerReader) -> None:
        self._tx = tx
        self._rules = {rule.name: rule for rule in read_rules(tx)}
        self._by_submitter: dict[SubmitterKey, SubmitterStanding] = {}
        self._inputs = RestrictedInputs()

    def reason(self, record: LedgerRecord) -> str:
        """Why a job may not start now; empty when it may."""
        return self.find(record).reason

    def find(self, record: LedgerRecord) -> SubmitterStanding:
        """The standing of a job's submitter, of what it reads, or of its queue where that is stopped."""
        key = make_submitter_key(record)
        if key not in self._by_submitter:
            self._by_submitter[key] = read_job_standing(self._tx, record)
        standing = self._by_submitter[key]
        standing = standing if standing.reason else self._inputs.find_standing(record, self._tx.key)
        return standing if standing.reason else find_queue_standing(record, self._rules)


def find_queue_standing(record: LedgerRecord, rules: Mapping[str, QueueRule]) -> SubmitterStanding:
    """Whether the queue of a job lets it start, and run."""
    stopped = find_stopped(record.body["queue"], rules)
    if stopped is None:
        return SubmitterStanding()
    verb = "drained" if stopped.stop == DRAIN else "held"
    reason = f"the queue {stopped.name} is {verb}" + (f": {stopped.stop_reason}" if stopped.stop_reason else "")
    return SubmitterStanding(reason, queue=stopped.name, runs_on=stopped.stop != DRAIN)


def can_keep_running(record: LedgerRecord, standing: SubmitterStanding) -> bool:
    """True for an attempt that a lost standing does not stop. The replica of an endpoint runs on when its deployer, and
    not its tenant, is suspended: an endpoint is its tenant's. It drains by itself when its model is restricted."""
    exempt = record.body.get("kind") in REPLICA_KINDS and bool(standing.person_suspended or standing.restricted_input)
    return record.body["attempt"] is not None and (standing.runs_on or exempt)


def make_submitter_key(record: LedgerRecord) -> SubmitterKey:
    """What the standing of a job depends on; jobs with the same key have the same standing."""
    submitter = record.body["who"]
    return record.key.tenant, record.key.project, submitter["id"], submitter.get("trust", ""), tuple(submitter["roles"])


def is_tenant_suspended(tx: LedgerReader, tenant: str) -> bool:
    """True while the people who run the installation keep a tenant suspended."""
    record = tx.key(make_tenant_key(tenant)) if tenant != SYSTEM_TENANT else None
    return record is not None and bool(record.body.get("suspended"))
