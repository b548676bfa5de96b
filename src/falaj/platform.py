"""Door 1: the house assembled. Settings give backends, backends give rooms, and the guard stands before them all."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from falaj.bound import BoundDesk, HouseBytes
from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errand import Progress, Silence
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.core.event import new_id
from falaj.core.garbage import seldom
from falaj.core.health import DependencyMonitor, probe
from falaj.core.label import Label
from falaj.core.online import tenant_address
from falaj.core.permit import PermitDesk, Ticket
from falaj.core.ports import Blobs, Identity, Online, Series
from falaj.core.ref import Ref
from falaj.core.settings import Oidc, Settings, read_settings
from falaj.core.verb import Verb, verb_of
from falaj.desks import DESKS, actions, desk_class
from falaj.govern.accounts import Accounts
from falaj.govern.approvals import Approvals
from falaj.govern.destruction import DestructionChecks
from falaj.govern.folder_owner import identify_folder_owner
from falaj.govern.guard import Guard
from falaj.govern.keys import Keyring
from falaj.govern.legal_calendars import load_calendars
from falaj.govern.manifest import first_zone
from falaj.govern.policy import Authorizer
from falaj.govern.policy_desk import Policy
from falaj.govern.regimes import Regimes
from falaj.govern.role_confirmation import RoleConfirmation
from falaj.govern.service_table import ServiceTable
from falaj.govern.sign_ins import SignIns
from falaj.govern.tokens import WorkloadTokens
from falaj.govern.zones import Zones
from falaj.plugins import plugin
from falaj.store.blobs import BlobStore
from falaj.store.fence import CopyFence
from falaj.store.ledger import Ledger
from falaj.store.transfer import Transfers

if TYPE_CHECKING:
    # A desk's module is loaded when somebody first speaks to it; a command that asks one desk does not wait for all.
    from falaj.asof.encrypted_online import EncryptedOnline
    from falaj.audit.service import Audit
    from falaj.catalog.service import Catalog
    from falaj.core.replica import Replica
    from falaj.store.backup import BackupReport
    from falaj.store.backup import Progress as Restoring
    from falaj.store.loop import Loop, Loops, Turned
    from falaj.store.presence import Presence
    from falaj.store.service import Storage
    from falaj.track.service import Track

HOLDERS = ("blob", "dataset", "model", "code", "artifact", "document")
"""Every kind of record that keeps bytes alive by the digests in its terms."""
T = TypeVar("T")


def connect(address: str = "", *, token: str = "", purpose: str = "", **overrides: Any) -> Any:
    """The platform: in process when `address` is a folder (or nothing), over HTTP when it is a URL. The same calls.

    In process the operating-system user owns the folder; a token given there acts for whoever it belongs to.
    """
    if address.startswith(("http://", "https://")):
        return plugin("remote", "http")(address, token=token, purpose=purpose, **overrides)
    house = House(load_settings(address, overrides))
    return Platform(house, house.authenticate(token) if token else house.owner(), purpose)


def load_settings(home: str = "", overrides: Mapping[str, Any] | None = None) -> Settings:
    """Settings for a folder: falaj.toml in it (or in the current folder), then the environment, then arguments."""
    env = dict(os.environ)
    if (where := env.get("FALAJ_URL", "")) and not where.startswith(("http://", "https://")):
        env["FALAJ_HOME"] = env.pop("FALAJ_URL")  # a folder is a house to every command, and an address to nobody
    chosen = {**(overrides or {}), **({"home": home} if home else {})}
    if chosen.get("home"):
        chosen["home"] = str(Path(str(chosen["home"])).expanduser().resolve())  # so that one reading suffices
    base = Path(str(chosen.get("home") or env.get("FALAJ_HOME") or "~/.falaj")).expanduser()
    file = next((f for f in (base / "falaj.toml", Path("falaj.toml")) if f.is_file()), None)
    tree = _read_toml(file) if file else {}
    name = str(file) if file else "falaj.toml"
    settings = read_settings(tree, env, chosen, name)
    full = str(Path(settings.home).expanduser().resolve())
    return settings if full == settings.home else read_settings(tree, env, {**chosen, "home": full}, name)


def restore_into(settings: Settings, path: str, progress: "Restoring | None" = None) -> "BackupReport":
    """Bring a backup into the empty store these settings name; no house stands on it yet."""
    from falaj.store.backup import restore
    from falaj.store.fence import raise_fence

    Path(settings.home).mkdir(mode=0o700, parents=True, exist_ok=True)
    ledger = Ledger(_opened("store", settings.at(settings.store), {}))
    try:
        report = restore(ledger, path, progress)
        raise_fence(ledger, path, time.time())
        return report
    finally:
        ledger.close()


class House:
    """Everything assembled, with no caller bound. One a process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.sandbox == "required":
            from falaj.content.isolated_parser import require_isolation

            require_isolation()
        Path(settings.home).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.replica = f"replica-{new_id()}"
        self.ledger = Ledger(_opened("store", settings.at(settings.store), {}))
        self._secrets = _opened("secrets", settings.at(settings.secrets), {})
        self.keyring = Keyring(self.ledger, self._secrets, home=settings.zone)
        self.ledger.cipher = self.keyring
        self.keyring.warm()
        self._stores: dict[str, Blobs] = {}
        self._measured: Series | None = None
        self._online_stores: dict[str, EncryptedOnline] = {}
        self._identities: list[Identity] = []
        self._opening = RLock()
        self._loops: Loops | None = None
        self._presence: Presence | None = None
        self.dependencies = DependencyMonitor(self._dependency_checks())
        self.fence = CopyFence(self.ledger)
        self._build()

    def _build(self) -> None:
        """What every call passes, in order: each part gets exactly what it needs, and a ring cannot be written."""
        settings, ledger, keyring = self.settings, self.ledger, self.keyring
        regimes = Regimes(settings.regimes)
        permits = PermitDesk(keyring.permit_key())
        self.accounts = Accounts(ledger, settings.zone)
        self._sign_ins = SignIns(ledger, self.accounts, settings.zone)
        self.workloads = WorkloadTokens(keyring, self.accounts.stopped, partial(self.accounts.refresh, reread=True))
        self.blobs = BlobStore(ledger, self._zone_store, keyring, permits)
        authorizer = Authorizer(actions())
        policy = Policy(ledger, authorizer, settings.zone, self.accounts.standing)
        approvals = Approvals(ledger, self.accounts.person_of, self.blobs)
        confirmation = RoleConfirmation(self.accounts, approvals)
        self.zones = Zones(ledger, regimes, approvals, partial(load_calendars, settings.regimes))
        destruction = DestructionChecks(ledger, self.zones, approvals, keyring)
        self.transfers = Transfers(self.blobs, permits, self._authorize_transfer)
        self.desks: ServiceTable = ServiceTable(
            {
                "catalog": lambda: (
                    *(ledger, self.blobs, self.transfers, approvals, keyring, settings.registries),
                    self.zones,
                ),
                "track": lambda: (ledger, self.blobs, self._series(), self.catalog),
                "outputs": lambda: (ledger, self.track),
                "store": lambda: (ledger, self.blobs, self._collector(), self._kept()),
                "people": lambda: (ledger, self.accounts, self.workloads, self._issuer, approvals, confirmation),
                "policy": policy,
                "zones": self.zones,
                "approvals": approvals,
                "keys": lambda: (ledger, self._rotations(), settings.secrets.partition(":")[0]),
                "secrets": lambda: (ledger, keyring),
                "audit": lambda: (ledger, keyring, settings.installation, partial(self._zone_store, settings.zone)),
                "clusters": lambda: (ledger, self._open_executor, self._secret, settings, self._series),
                "agents": lambda: (ledger, partial(plugin("authority", "local"), settings.home)),
                "queues": lambda: (ledger,),
                "traces": lambda: (ledger, destruction),
                "jobs": lambda: (ledger, self.desks["clusters"], self.track, self._staging()),
                "train": tuple,
                "sweeps": lambda: (ledger, self.desks["jobs"], self.track, self.catalog),
                "features": lambda: (
                    *(ledger, partial(Platform, self), self._series, self.online, keyring),
                    destruction,
                ),
                "serve": lambda: (ledger, self.desks["jobs"], self.catalog, *self._serving(), keyring, settings),
                "monitor": lambda: (ledger, self.desks["serve"], *self._serving(), keyring),
                "flows": lambda: (ledger, self.desks["jobs"], partial(Platform, self), keyring, settings),
                "privacy": lambda: (ledger, keyring, self.zones, self.audit, self.online, approvals, self._estate()),
            }
        )
        self.guard = Guard(ledger, authorizer, self.zones, permits, self.accounts.standing, step_up=settings.step_up)
        if not self.zones.has(self.system(), settings.zone):
            _first(lambda: self.zones.ensure(self.system(), first_zone(settings, regimes)))
        _first(lambda: policy.keep(self.system()))

    @property
    def catalog(self) -> "Catalog":
        """The catalog's desk."""
        found: Catalog = self.desks["catalog"]
        return found

    @property
    def track(self) -> "Track":
        """The desk of experiments."""
        found: Track = self.desks["track"]
        return found

    @property
    def storage(self) -> "Storage":
        """The desk of bytes."""
        found: Storage = self.desks["store"]
        return found

    @property
    def audit(self) -> "Audit":
        """The desk of proofs."""
        found: Audit = self.desks["audit"]
        return found

    def bootstrap(self) -> str:
        """At first start: the token of whoever runs this installation, shown this once; empty ever after."""
        issued = _first(lambda: self.accounts.found(self.system()))
        return issued.token if issued else ""

    def appoint_first_officer(self) -> str:
        """The enrolment code of the installation's security officer, at the first start that others can reach; else
        empty."""
        from falaj.fleet.sandbox import is_single_user

        with self.ledger.read(self.system()) as tx:
            if is_single_user(self.settings, tx):
                return ""
        people = self.desks["people"]
        return str(_first(lambda: people.appoint_first_officer(self.system())))

    def call(self, desk: str, verb: str, ctx: Context, arguments: Mapping[str, Any]) -> Any:
        """One verb for one caller, through the guard; arguments are typed already."""
        return self.guard.call(desk, self.desks[desk], verb_of(desk_class(desk), verb), ctx, arguments)

    def check(self, desk: str, verb: str, ctx: Context, arguments: Mapping[str, Any]) -> None:
        """Raise what forbids a call as accounts, roles and policies are at this moment; nothing is called."""
        self.guard.check(desk, verb_of(desk_class(desk), verb), ctx, arguments)

    def _authorize_transfer(self, ctx: Context, ticket: Ticket) -> None:
        """Raise what forbids the holder of a ticket, as their account and the rules are now, to go on using it."""
        verb, given = "open", dict[str, Any](name=Ref.parse(ticket.thing))
        if ticket.op == "write":
            label = Label.parse(json.loads(ticket.label)) if ticket.label else None
            verb, given = "begin", {**given, "zone": ticket.zone, "label": label}
        current = replace(ctx, actor=self.accounts.refresh(ctx.actor), purpose=ticket.purpose)
        self.check("catalog", verb, current, given)

    def authenticate(self, token: str) -> Actor:
        """Who a bearer token is, or Unauthenticated."""
        now = time.time()
        for provider in self._providers():
            actor = provider.whois(token, now)
            if actor is not None:
                self.accounts.check_active(actor)
                self._sign_ins.note(actor, now)
                return actor
        raise Unauthenticated("no identity provider knows this token", "sign in: falaj login")

    def context(self, actor: Actor, *, request: str = "", purpose: str = "", attempt_kind: str = "job") -> Context:
        """What a call of this actor runs under; naming the request makes its repeats find the first outcome."""
        # A workload stands where it runs, whichever process speaks for it; everybody else where we do.
        zone = actor.zone or self.settings.zone
        if request:
            return Context(actor, zone, request=request, keyed=True, purpose=purpose)
        return Context(actor, zone, purpose=purpose, attempt_kind=attempt_kind)

    def system(self) -> Context:
        """The house acting for itself: first start, loops."""
        return self.context(Actor("falaj", HOUSE, kind="service", roles=frozenset({"service"})))

    def owner(self) -> Actor:
        """The operating-system user, who owns the folder and with it everything embedded in it."""
        return identify_folder_owner(self.settings.home, self.settings.jurisdiction)

    def deny(self, ctx: Context | None, path: str, reason: str) -> None:
        """Record that somebody was turned away at the door."""
        who = ctx or self.context(Actor("anonymous", HOUSE, kind="guest"))
        self.guard.record_denial(who, path, Denied(reason))

    def join(self, role: str, at: str) -> None:
        """Be seen by the other replicas on the same store, as what answers there."""
        from falaj.store.presence import Presence

        self._presence = Presence(self.ledger, self.replica, role, at)
        self._presence.start()

    def replicas(self) -> "tuple[Replica, ...]":
        """Who works with the store, where this process is one of them."""
        return self._presence.seen if self._presence is not None else ()

    def start_loops(self) -> None:
        """Begin the background work: sealing, rotation, collecting, jobs."""
        from falaj.audit.loop import SealLoop
        from falaj.catalog.loop import StageLoop
        from falaj.fleet.watch import WatchLoop
        from falaj.govern.rotate import RotationLoop
        from falaj.store.backups import BackupLoop
        from falaj.store.forget import ForgetOutcomes
        from falaj.store.upkeep import CollectLoop, ScrubLoop

        self._providers()  # a server that cannot know anybody says so when it starts
        if self.fence.holds_back(self.start_loops):
            return
        self.desks["clusters"].check_sandbox(self.system())
        collector = self.storage.collector
        steps: list[Loop] = [
            CollectLoop(self.ledger, collector),
            ScrubLoop(self.ledger, collector),
            SealLoop(self.ledger, self.audit.sealer, self.settings.seal_s),
            RotationLoop(self._rotations()),
            ForgetOutcomes(self.ledger),
            StageLoop(self.ledger, self.catalog, self.zones),
            *self._jobs_loops(),
            WatchLoop(self.ledger, self.desks["clusters"], self.settings.home),
        ]
        if self.settings.backup.to:
            steps.append(BackupLoop(self._kept()))
        steps += self.audit.timestamp_loops(self.settings.timestamp)
        self._start(steps)

    def stop_loops(self) -> None:
        """Let every loop end its step."""
        self.fence.stop()
        if self._loops is not None:
            self._loops.stop()
            self._loops = None

    def turned(self) -> "tuple[Turned, ...]":
        """How the loops that run in this process do."""
        return self._loops.turned() if self._loops is not None else ()

    @contextmanager
    def working(self) -> Iterator[None]:
        """While entered, jobs go on even where no server runs: their loops run in this process."""
        if self._loops is not None:
            yield
            return
        self.fence.check()
        self._start(self._jobs_loops())
        try:
            with seldom():
                yield
        finally:
            self.stop_loops()

    def _jobs_loops(self) -> "tuple[Loop, ...]":
        from falaj.dispatch.loops import loops
        from falaj.flows.listening import HookLoop, StartLoop
        from falaj.flows.loop import FlowLoop
        from falaj.monitor.loop import MonitorLoop
        from falaj.serve.loop import ServeLoop
        from falaj.study.loop import SweepLoop

        known = self.ledger, self.desks["clusters"], self.track, self.desks["jobs"], self.settings.schedule
        sweeps, serve = SweepLoop(self.ledger, self.desks["sweeps"]), ServeLoop(self.ledger, self.desks["serve"])
        flows = self.desks["flows"].reveals(self._secret)
        last = [loop(self.ledger, flows) for loop in (FlowLoop, StartLoop, HookLoop)]
        return *loops(*known), sweeps, serve, MonitorLoop(self.ledger, self.desks["monitor"]), *last

    def _start(self, steps: "Iterable[Loop]") -> None:
        from falaj.store.loop import Loops, house_context

        zone = self.settings.zone
        self._loops = Loops(self.ledger, self.replica, steps, lambda name: house_context(name, zone))
        self._loops.start()
        if self.settings.online.startswith("redis") and "{tenant}" not in self.settings.online:
            Thread(target=self._warn_about_readers, name="online-readers", daemon=True).start()

    def _warn_about_readers(self) -> None:
        """Log at start that the online store cannot keep tenants apart, so that replicas get no features from it."""
        try:
            self.online(HOUSE).admit_reader("")
        except Denied as error:
            text = "replicas that read features are refused as soon as there is a second tenant: %s; %s"
            logging.getLogger(__name__).warning(text, error.message, error.hint)
        except FalajError:
            return  # a store that does not answer now is reported when it is used

    def close(self) -> None:
        """Close what was opened. What was acknowledged is durable already."""
        self.stop_loops()
        self.dependencies.stop()
        if self._presence is not None:
            self._presence.stop()
        self.guard.close()
        for name in sorted({"clusters", "track"} & self.desks.open.keys()):
            self.desks[name].close()
        for store in (self._measured, *self._online_stores.values()):
            if store is not None:
                store.close()
        for opened in (*self._identities, *self._stores.values(), self._secrets, self.ledger):
            opened.close()

    def _zone_store(self, zone: str) -> Blobs:
        """The blob store of a zone, opened once."""
        if zone not in self._stores:
            found = self.zones.view(HOUSE, time.time()).zones.get(zone)
            if found is None:
                raise NotFound(f"there is no zone {zone!r:.60}", "falaj zones list shows them")
            if not found.store:
                raise Invalid(f"the zone {zone} has no store", f"falaj zones change {zone} --more store=…")
            self._stores[zone] = self._near(zone, _opened("blobs", self.settings.at(found.store), {}))
        return self._stores[zone]

    def _near(self, zone: str, store: Blobs) -> Blobs:
        """The same store with a cache before it, where it is far and the settings name a place for one."""
        if not self.settings.cache or not getattr(store, "requests", 0):
            return store
        from falaj.store.cache import CachedBlobs

        folder = Path(self.settings.at(self.settings.cache)).expanduser() / zone
        return CachedBlobs(store, folder, self.settings.cache_bytes)

    def _series(self) -> Series:
        """Where the points of metrics and telemetry lie; opened once somebody writes or reads them."""
        with self._opening:
            self._measured = self._measured or _opened("series", self.settings.series_url, {})
            return self._measured

    def online(self, tenant: str) -> "EncryptedOnline":
        """The online feature store of one tenant, encrypted with its keys; opened at the first read or write."""
        store = self._online_stores.get(tenant)
        if store is None:
            address = tenant_address(self.settings.at(self.settings.online), tenant)
            with self._opening:
                store = self._online_stores.get(tenant) or self._open_online(address, tenant)
                self._online_stores[tenant] = store
        return store

    def _open_online(self, address: str, tenant: str) -> "EncryptedOnline":
        from falaj.asof.encrypted_online import EncryptedOnline

        return EncryptedOnline(_opened("online", address, {}), partial(self.keyring.online_keys, tenant))

    def _open_executor(self, url: str, options: Mapping[str, Any]) -> Any:
        """What speaks to a cluster; a fenced copy reaches none."""
        self.fence.check()
        return _opened("executor", url, options)

    def _secret(self, ctx: Context, reference: str) -> bytes:
        """A secret by reference, for a room that needs it now."""
        return bytes(self.desks["secrets"].resolve(ctx, reference))

    def _serving(self) -> tuple[Any, Any]:
        """In whose name replicas are asked for, and where what gateways counted lies."""
        return partial(Platform, self), self._series

    def _staging(self) -> Any:
        from falaj.fleet.sandbox import is_single_user
        from falaj.jobs.staging import Staging

        act = partial(Platform, self)
        alone = partial(is_single_user, self.settings)
        return Staging(self.ledger, self.zones, act, self._secret, self.workloads, self.settings.url, alone)

    def _estate(self) -> Any:
        """What a search for a person reads from."""
        from falaj.privacy.search.estate import Estate

        return Estate(self.ledger, self.blobs, self._series, self.desks.__getitem__, self._collector)

    def _rotations(self) -> Any:
        from falaj.govern.rotation import Rotations

        return Rotations(self.keyring)

    def _collector(self) -> Any:
        from falaj.store.collect import Collector

        return Collector(self.blobs, HOLDERS)

    def _kept(self) -> Any:
        from falaj.audit.recovering import backups_of

        opened, sealer = partial(_opened, options={}), lambda: self.audit.sealer
        return backups_of(self.blobs, self.keyring, self.zones, sealer, self.settings, HOLDERS, opened)

    def _providers(self) -> list[Identity]:
        """Who can say whose a token is; opened once, with the first token."""
        with self._opening:
            if not self._identities:
                self._identities = self._open_providers()
        return self._identities

    def _open_providers(self) -> list[Identity]:
        options = {"find": self.accounts.lookup, "oidc": self.settings.oidc}
        urls = [url.strip() for url in self.settings.identity.split(",") if url.strip()]
        return [*(_opened("identity", url, options) for url in urls), self.workloads]

    def _issuer(self, url: str) -> Any:
        """A provider whose tokens build systems exchange for ours: one that the settings name, and no other."""
        if url not in (*self.settings.federation, self.settings.oidc.issuer):
            hint = "whoever runs this installation can add it to the setting `federation`"
            raise Denied(f"this installation does not call {url[:200]}", hint)
        return _opened("identity", f"oidc:{url}", {"oidc": Oidc(issuer=url)})

    def _dependency_checks(self) -> dict[str, Callable[[], object]]:
        """What this process depends on, and how each dependency is checked."""
        checks: dict[str, Callable[[], object]] = {
            "store": self.ledger.probe,
            "version": self._check_version,
            "blobs": self._check_blobs,
            "keys": self.keyring.permit_key,
        }
        if self.settings.online.startswith("redis"):
            checks["online"] = lambda: probe(self.online(HOUSE))
        return checks

    def _check_version(self) -> None:
        if self._presence is not None and not self._presence.welcome:
            raise Unavailable("the store's schema went on without this version", "upgrade this replica")

    def _check_blobs(self) -> None:
        store = self._zone_store(self.settings.zone)
        store = getattr(store, "inner", store)
        if not probe(store):
            store.stat(["ready"])


class Platform:
    """The house with a caller bound: `here.zones.list()`. Attributes are desks; texts become what verbs ask for."""

    def __init__(self, house: House, actor: Actor, purpose: str = "", attempt_kind: str = "job") -> None:
        self.house = house
        self.actor = actor
        self.purpose = purpose
        self._attempt_kind = attempt_kind
        self.address = f"dir:{house.settings.home}"
        self.progress: Progress = Silence()
        self.bytes = HouseBytes(self)

    def __getattr__(self, name: str) -> "BoundDesk":
        if name.startswith("_") or name not in DESKS:
            raise AttributeError(f"there is no desk {name!r}; there are: {', '.join(DESKS)}")
        return BoundDesk(name, self, self._call)

    def __dir__(self) -> list[str]:
        return [*DESKS, "close"]

    def __enter__(self) -> "Platform":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def working(self) -> AbstractContextManager[None]:
        """While entered, jobs go on even where no server runs."""
        return self.house.working()

    def online(self) -> Online:
        """The newest features, read here and not asked for over a wire."""
        return self.house.online(self.actor.tenant)

    def token(self) -> str:
        """What an endpoint is called with where nobody signed in: this caller, for minutes, as work and no more."""
        from falaj.govern.people_records import Workload
        from falaj.govern.tokens import WORK_ROLES

        actor, zone = self.actor, self.house.settings.zone
        roles, run = actor.roles & WORK_ROLES - {"service"}, f"by-hand-{new_id()}"
        work = Workload(run, zone, actor.tenant, roles, actor.projects, actor.id, actor.jurisdiction)
        return self.house.workloads.issue(work, time.time())

    def close(self) -> None:
        """Close the house."""
        self.house.close()

    def _call(self, desk: str, verb: Verb, arguments: dict[str, Any]) -> Any:
        ctx = self.house.context(self.actor, purpose=self.purpose, attempt_kind=self._attempt_kind)
        return self.house.call(desk, verb.name, ctx, arguments)


def _opened(port: str, url: str, options: Mapping[str, Any]) -> Any:
    return plugin(port, url.partition(":")[0])(url, options)


def _first(make: Callable[[], T], tries: int = 10) -> T:
    """What a new house makes for itself; when replicas start together one of them makes it and the others find it."""
    for _ in range(tries - 1):
        with suppress(Conflict):
            return make()
    return make()


def _read_toml(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{file.name} is not TOML: {error}", "correct it, or remove the file to use the defaults"
        ) from error
