"""Whether work may go on in the name of whoever asked for it. The dispatcher, flows and sweeps ask before they act.

Suspension is no failure: what may not go on is held or stopped, and goes on when the suspension is lifted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from falaj.core.context import HOUSE, Actor
from falaj.core.data import dataclass
from falaj.core.execute import REPLICAS
from falaj.core.ports import Key
from falaj.core.project_roles import roles_in_project
from falaj.core.ref import Ref
from falaj.fleet.queues import read_rules, stopped_above
from falaj.fleet.records import DRAIN, QueueRule
from falaj.govern.accounts import PROVIDERS_PEOPLE, person_key, tenant_key, trust_key
from falaj.govern.sign_ins import read_current_roles, read_sign_in_expiry
from falaj.govern.tokens import WORK_ROLES
from falaj.schedule.model import NEVER
from falaj.store.ledger import Reader
from falaj.store.records import Record

RUN_ROLES = WORK_ROLES - {"viewer"}
"""Roles that may run jobs; a run may read as a viewer, too."""
SubmitterKey = tuple[str, str, str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Standing:
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


def submitter_of(tx: Reader, record: Record) -> Actor:
    """Who asked for something, with all the roles that they had then and still have."""
    who, tenant = record.body["who"], record.key.tenant
    roles, projects = frozenset(who["roles"]), frozenset(who["projects"])
    person = tx.key(person_key(tenant, who["id"]))
    if who["id"].startswith(PROVIDERS_PEOPLE):
        current, projects = read_current_roles(tx, tenant, who["id"])
        roles &= current
    elif person is not None:
        roles &= frozenset(person.body["roles"])
        projects = frozenset(person.body["projects"])
    owns, makers = bool(who.get("owns_folder")), tuple(who.get("makers", ()))
    return Actor(who["id"], tenant, roles=roles, projects=projects, owns_folder=owns, makers=makers)


def account_standing(tx: Reader, record: Record) -> Standing:
    """Whether anything may be done in the name of a record's owner: tenant, account and trust rule."""
    tenant, who = record.key.tenant, record.body["who"]
    if is_tenant_suspended(tx, tenant):
        return Standing(f"the tenant {tenant} is suspended")
    person = tx.key(person_key(tenant, who["id"]))
    if person is not None and person.body.get("removed"):
        return Standing(f"the account {who['id']} was removed", removed=True, person_suspended=True)
    if person is not None and person.body.get("suspended"):
        return Standing(f"the account {who['id']} is suspended", person_suspended=True)
    if who.get("trust") and tx.key(trust_key(tenant, who["trust"])) is None:
        return Standing(f"the build system {who['trust']} is trusted no more", person_suspended=True)
    return Standing()


def barred(tx: Reader, record: Record) -> str:
    """Why nothing may be done for whoever asked for something; empty when it may."""
    return account_standing(tx, record).reason


def job_standing(tx: Reader, record: Record) -> Standing:
    """Whether attempts of a job may start and run: tenant, account, trust rule, and the role and project it needs."""
    standing = account_standing(tx, record)
    if standing.reason:
        return standing
    submitter, who = submitter_of(tx, record), record.body["who"]["id"]
    expires = read_sign_in_expiry(tx, record.key.tenant, who) if who.startswith(PROVIDERS_PEOPLE) else float(NEVER)
    if not roles_in_project(submitter.roles, record.key.project) & RUN_ROLES:
        return Standing(f"{who} holds no role any more that may run jobs", expires=expires, person_suspended=True)
    if submitter.projects.isdisjoint({"*", record.key.project}):
        reason = f"{who} is not in the project {record.key.project} any more"
        return Standing(reason, expires=expires, person_suspended=True)
    return Standing(expires=expires)


class RestrictedInputs:
    """Remembers which versions that jobs read are restricted; each is read once."""

    def __init__(self) -> None:
        self._is_restricted: dict[tuple[str, str], bool] = {}

    def find_standing(self, record: Record, read: Callable[[Key], Record | None]) -> Standing:
        """The standing of a job by what it reads: lost while an input or its program is restricted."""
        tenant = record.key.tenant
        for name in _input_names(record):
            if (tenant, name) not in self._is_restricted:
                self._is_restricted[tenant, name] = _is_restricted(tenant, name, read)
            if self._is_restricted[tenant, name]:
                reason = f"{name} is restricted: it may be kept and nothing else"
                return Standing(reason, restricted_input=name)
        return Standing()

    def forget_changed(self, keys: Iterable[Key]) -> set[tuple[str, str]]:
        """Drop what is remembered of changed versions; gives tenant and name of each version that was."""
        changed = {(key.tenant, str(Ref(key.kind, key.project, key.name, key.version))) for key in keys}
        return {version for version in changed if self._is_restricted.pop(version, None) is not None}

    def forget_inputs(self, record: Record) -> None:
        """Drop what is remembered of the versions that a job reads."""
        for name in _input_names(record):
            self._is_restricted.pop((record.key.tenant, name), None)

    def forget_all(self) -> None:
        """Drop everything."""
        self._is_restricted = {}


def reads_any(record: Record, versions: Iterable[tuple[str, str]]) -> bool:
    """True when a job reads one of these versions, each given as tenant and name."""
    return any((record.key.tenant, name) in versions for name in _input_names(record))


def _input_names(record: Record) -> Iterator[str]:
    yield from record.body["inputs"].values()
    if record.body["code"]:
        yield record.body["code"]


def _is_restricted(tenant: str, name: str, read: Callable[[Key], Record | None]) -> bool:
    ref = Ref.parse(name)
    source = read(Key(tenant, ref.kind, ref.project, ref.name, ref.version)) if ref.pinned else None
    return source is not None and source.restricted


class StandingReader:
    """Reads the standings of many jobs in one transaction; each submitter and each input is looked up once."""

    def __init__(self, tx: Reader) -> None:
        self._tx = tx
        self._rules = {rule.name: rule for rule in read_rules(tx)}
        self._by_submitter: dict[SubmitterKey, Standing] = {}
        self._inputs = RestrictedInputs()

    def reason(self, record: Record) -> str:
        """Why a job may not start now; empty when it may."""
        return self.find(record).reason

    def find(self, record: Record) -> Standing:
        """The standing of a job's submitter, of what it reads, or of its queue where that is stopped."""
        key = submitter_key(record)
        if key not in self._by_submitter:
            self._by_submitter[key] = job_standing(self._tx, record)
        standing = self._by_submitter[key]
        standing = standing if standing.reason else self._inputs.find_standing(record, self._tx.key)
        return standing if standing.reason else queue_standing(record, self._rules)


def queue_standing(record: Record, rules: Mapping[str, QueueRule]) -> Standing:
    """Whether the queue of a job lets it start, and run."""
    stopped = stopped_above(record.body["queue"], rules)
    if stopped is None:
        return Standing()
    verb = "drained" if stopped.stop == DRAIN else "held"
    reason = f"the queue {stopped.name} is {verb}" + (f": {stopped.stop_reason}" if stopped.stop_reason else "")
    return Standing(reason, queue=stopped.name, runs_on=stopped.stop != DRAIN)


def runs_on(record: Record, standing: Standing) -> bool:
    """True for an attempt that a lost standing does not stop. The replica of an endpoint runs on when its deployer, and
    not its tenant, is suspended: an endpoint is its tenant's. It drains by itself when its model is restricted."""
    exempt = record.body.get("kind") in REPLICAS and bool(standing.person_suspended or standing.restricted_input)
    return record.body["attempt"] is not None and (standing.runs_on or exempt)


def submitter_key(record: Record) -> SubmitterKey:
    """What the standing of a job depends on; jobs with the same key have the same standing."""
    who = record.body["who"]
    return record.key.tenant, record.key.project, who["id"], who.get("trust", ""), tuple(who["roles"])


def is_tenant_suspended(tx: Reader, tenant: str) -> bool:
    """True while the people who run the installation keep a tenant suspended."""
    record = tx.key(tenant_key(tenant)) if tenant != HOUSE else None
    return record is not None and bool(record.body.get("suspended"))
