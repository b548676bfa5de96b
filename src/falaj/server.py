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

from falaj.client import ServerByteChannel, ServiceProxy
from falaj.core.client_command import NullProgress, ProgressReporter
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.dependency_health import DependencyMonitor, probe_backend
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.core.event import generate_id
from falaj.core.garbage_collection import throttle_garbage_collector
from falaj.core.label import Label
from falaj.core.online_rows import build_tenant_address
from falaj.core.operation import Operation, get_operation
from falaj.core.ports import IdentityProvider, ObjectStore, OnlineStore, SeriesStore
from falaj.core.ref import Ref
from falaj.core.settings import OidcSettings, Settings, read_settings
from falaj.core.transfer_permits import PermitAuthority, TransferTicket
from falaj.govern.accounts import AccountDirectory
from falaj.govern.approvals import ApprovalService
from falaj.govern.authorizer import Authorizer
from falaj.govern.destruction_checks import DestructionChecks
from falaj.govern.folder_owner import identify_folder_owner
from falaj.govern.guard import CallGuard
from falaj.govern.keyring import Keyring
from falaj.govern.legal_calendars import load_calendars
from falaj.govern.policy_service import PolicyService
from falaj.govern.regimes import LazyRegimes
from falaj.govern.role_confirmation import RoleConfirmation
from falaj.govern.service_table import ServiceTable
from falaj.govern.sign_ins import SignInRecorder
from falaj.govern.workload_tokens import WorkloadTokens
from falaj.govern.zone_manifest import create_first_zone
from falaj.govern.zones import ZoneService
from falaj.plugins import load_plugin
from falaj.services import SERVICES, list_actions, load_service_class
from falaj.store.blob_store import BlobStore
from falaj.store.copy_fence import CopyFence
from falaj.store.ledger import Ledger
from falaj.store.transfers import TransferService

if TYPE_CHECKING:
    # A desk's module is loaded when somebody first speaks to it; a command that asks one desk does not wait for all.
    from falaj.asof.encrypted_online_store import EncryptedOnlineStore
    from falaj.audit.service import AuditService
    from falaj.catalog.service import CatalogService
    from falaj.core.replica_info import ReplicaInfo
    from falaj.store.backup import BackupReport
    from falaj.store.backup import ReportProgress as Restoring
    from falaj.store.reconcile_loop import LoopRunner, LoopStatus, ReconcileLoop
    from falaj.store.replica_presence import ReplicaPresence
    from falaj.store.service import StorageService
    from falaj.track.service import TrackService

BLOB_HOLDER_KINDS = ("blob", "dataset", "model", "code", "artifact", "document")
"""Every kind of record that keeps bytes alive by the digests in its terms."""
T = TypeVar("T")


def connect(address: str = "", *, token: str = "", purpose: str = "", **overrides: Any) -> Any:
    """The platform: in process when `address` is a folder (or nothing), over HTTP when it is a URL. The same calls.

    In process the operating-system user owns the folder; a token given there acts for whoever it belongs to.
    """
    if address.startswith(("http://", "https://")):
        return load_plugin("remote", "http")(address, token=token, purpose=purpose, **overrides)
    server = Server(load_settings(address, overrides))
    return LocalClient(server, server.authenticate(token) if token else server.owner(), purpose)


def load_settings(home: str = "", overrides: Mapping[str, Any] | None = None) -> Settings:
    """Settings for a folder: falaj.toml in it (or in the current folder), then the environment, then arguments."""
    environment = dict(os.environ)
    if (url_setting := environment.get("FALAJ_URL", "")) and not url_setting.startswith(("http://", "https://")):
        environment["FALAJ_HOME"] = environment.pop(
            "FALAJ_URL"
        )  # a folder is a house to every command, and an address to nobody
    overrides_with_home = {**(overrides or {}), **({"home": home} if home else {})}
    if overrides_with_home.get("home"):
        overrides_with_home["home"] = str(
            Path(str(overrides_with_home["home"])).expanduser().resolve()
        )  # so that one reading suffices
    home_folder = Path(str(overrides_with_home.get("home") or environment.get("FALAJ_HOME") or "~/.falaj")).expanduser()
    settings_file = next(
        (candidate for candidate in (home_folder / "falaj.toml", Path("falaj.toml")) if candidate.is_file()), None
    )
    settings_tree = _read_toml(settings_file) if settings_file else {}
    file_name = str(settings_file) if settings_file else "falaj.toml"
    settings = read_settings(settings_tree, environment, overrides_with_home, file_name)
    resolved_home = str(Path(settings.home).expanduser().resolve())
    return (
        settings
        if resolved_home == settings.home
        else read_settings(settings_tree, environment, {**overrides_with_home, "home": resolved_home}, file_name)
    )


def restore_into_store(
    settings: Settings, backup_path: str, report_progress: "Restoring | None" = None
) -> "BackupReport":
    """Bring a backup into the empty store these settings name; no house stands on it yet."""
    from falaj.store.backup import restore
    from falaj.store.copy_fence import raise_fence

    Path(settings.home).mkdir(mode=0o700, parents=True, exist_ok=True)
    ledger = Ledger(_open_backend("store", settings.at(settings.store), {}))
    try:
        report = restore(ledger, backup_path, report_progress)
        raise_fence(ledger, backup_path, time.time())
        return report
    finally:
        ledger.close()


class Server:
    """Everything assembled, with no caller bound. One a process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.sandbox == "required":
            from falaj.content.isolated_parser import require_isolation

            require_isolation()
        Path(settings.home).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.replica = f"replica-{generate_id()}"
        self.ledger = Ledger(_open_backend("store", settings.at(settings.store), {}))
        self._root_key_provider = _open_backend("secrets", settings.at(settings.secrets), {})
        self.keyring = Keyring(self.ledger, self._root_key_provider, home_zone=settings.zone)
        self.ledger.cipher = self.keyring
        self.keyring.warm()
        self._object_stores: dict[str, ObjectStore] = {}
        self._series_store: SeriesStore | None = None
        self._online_stores_by_tenant: dict[str, EncryptedOnlineStore] = {}
        self._identity_providers: list[IdentityProvider] = []
        self._open_lock = RLock()
        self._loop_runner: LoopRunner | None = None
        self._presence: ReplicaPresence | None = None
        self.dependencies = DependencyMonitor(self._dependency_checks())
        self.fence = CopyFence(self.ledger)
        self._assemble_services()

    def _assemble_services(self) -> None:
        """What every call passes, in order: each part gets exactly what it needs, and a ring cannot be written."""
        settings, ledger, keyring = self.settings, self.ledger, self.keyring
        regimes = LazyRegimes(settings.regimes)
        permit_authority = PermitAuthority(keyring.permit_key())
        self.accounts = AccountDirectory(ledger, settings.zone)
        self._sign_ins = SignInRecorder(ledger, self.accounts, settings.zone)
        self.workloads = WorkloadTokens(keyring, self.accounts.stopped, partial(self.accounts.refresh, uncached=True))
        self.blobs = BlobStore(ledger, self._open_zone_store, keyring, permit_authority)
        authorizer = Authorizer(list_actions())
        policy = PolicyService(ledger, authorizer, settings.zone, self.accounts.standing)
        approvals = ApprovalService(ledger, self.accounts.person_of, self.blobs)
        role_confirmation = RoleConfirmation(self.accounts, approvals)
        self.zones = ZoneService(ledger, regimes, approvals, partial(load_calendars, settings.regimes))
        destruction = DestructionChecks(ledger, self.zones, approvals, keyring)
        self.transfers = TransferService(self.blobs, permit_authority, self._authorize_transfer)
        self.desks: ServiceTable = self._create_service_table(policy, approvals, role_confirmation, destruction)
        self.guard = CallGuard(
            ledger, authorizer, self.zones, permit_authority, self.accounts.standing, step_up=settings.step_up
        )
        if not self.zones.has(self.system(), settings.zone):
            _retry_on_conflict(lambda: self.zones.ensure(self.system(), create_first_zone(settings, regimes)))
        _retry_on_conflict(lambda: policy.keep(self.system()))

    def _create_service_table(
        self,
        policy: PolicyService,
        approvals: ApprovalService,
        role_confirmation: RoleConfirmation,
        destruction: DestructionChecks,
    ) -> ServiceTable:
        """Return the services by name; each is created with exactly these arguments when it is first used."""
        settings, ledger, keyring = self.settings, self.ledger, self.keyring
        return ServiceTable(
            {
                "catalog": lambda: (
                    *(ledger, self.blobs, self.transfers, approvals, keyring, settings.registries),
                    self.zones,
                ),
                "track": lambda: (ledger, self.blobs, self._open_series(), self.catalog),
                "outputs": lambda: (ledger, self.track),
                "store": lambda: (ledger, self.blobs, self._create_collector(), self._create_backup_manager()),
                "people": lambda: (
                    *(ledger, self.accounts, self.workloads, self._open_issuer, approvals, role_confirmation),
                ),
                "policy": policy,
                "zones": self.zones,
                "approvals": approvals,
                "keys": lambda: (ledger, self._create_rotations(), settings.secrets.partition(":")[0]),
                "secrets": lambda: (ledger, keyring),
                "audit": lambda: (
                    ledger,
                    keyring,
                    settings.installation,
                    partial(self._open_zone_store, settings.zone),
                ),
                "clusters": lambda: (ledger, self._open_executor, self._resolve_secret, settings, self._open_series),
                "agents": lambda: (ledger, partial(load_plugin("authority", "local"), settings.home)),
                "queues": lambda: (ledger,),
                "traces": lambda: (ledger, destruction),
                "jobs": lambda: (ledger, self.desks["clusters"], self.track, self._create_staging()),
                "train": tuple,
                "sweeps": lambda: (ledger, self.desks["jobs"], self.track, self.catalog),
                "features": lambda: (
                    *(ledger, partial(LocalClient, self), self._open_series, self.online, keyring),
                    destruction,
                ),
                "serve": lambda: (
                    *(ledger, self.desks["jobs"], self.catalog, *self._serving_arguments(), keyring, settings),
                ),
                "monitor": lambda: (ledger, self.desks["serve"], *self._serving_arguments(), keyring),
                "flows": lambda: (ledger, self.desks["jobs"], partial(LocalClient, self), keyring, settings),
                "privacy": lambda: (
                    *(ledger, keyring, self.zones, self.audit, self.online, approvals, self._create_search_estate()),
                ),
            }
        )

    @property
    def catalog(self) -> "CatalogService":
        """The catalog's desk."""
        service: CatalogService = self.desks["catalog"]
        return service

    @property
    def track(self) -> "TrackService":
        """The desk of experiments."""
        service: TrackService = self.desks["track"]
        return service

    @property
    def storage(self) -> "StorageService":
        """The desk of bytes."""
        service: StorageService = self.desks["store"]
        return service

    @property
    def audit(self) -> "AuditService":
        """The desk of proofs."""
        service: AuditService = self.desks["audit"]
        return service

    def bootstrap(self) -> str:
        """At first start: the token of whoever runs this installation, shown this once; empty ever after."""
        issued = _retry_on_conflict(lambda: self.accounts.found(self.system()))
        return issued.token if issued else ""

    def appoint_first_officer(self) -> str:
        """The enrolment code of the installation's security officer, at the first start that others can reach; else
        empty."""
        from falaj.fleet.sandbox import is_single_user

        with self.ledger.read(self.system()) as tx:
            if is_single_user(self.settings, tx):
                return ""
        people_service = self.desks["people"]
        return str(_retry_on_conflict(lambda: people_service.appoint_first_officer(self.system())))

    def call(self, service_name: str, operation_name: str, ctx: CallContext, arguments: Mapping[str, Any]) -> Any:
        """One verb for one caller, through the guard; arguments are typed already."""
        return self.guard.call(
            service_name,
            self.desks[service_name],
            get_operation(load_service_class(service_name), operation_name),
            ctx,
            arguments,
        )

    def check(self, desk: str, verb: str, ctx: CallContext, arguments: Mapping[str, Any]) -> None:
        """Raise what forbids a call as accounts, roles and policies are at this moment; nothing is called."""
        self.guard.check(desk, get_operation(load_service_class(desk), verb), ctx, arguments)

    def _authorize_transfer(self, ctx: CallContext, ticket: TransferTicket) -> None:
        """Raise what forbids the holder of a ticket, as their account and the rules are now, to go on using it."""
        operation_name, operation_arguments = "open", dict[str, Any](name=Ref.parse(ticket.thing))
        if ticket.op == "write":
            label = Label.parse(json.loads(ticket.label)) if ticket.label else None
            operation_name, operation_arguments = "begin", {**operation_arguments, "zone": ticket.zone, "label": label}
        current = replace(ctx, actor=self.accounts.refresh(ctx.actor), purpose=ticket.purpose)
        self.check("catalog", operation_name, current, operation_arguments)

    def authenticate(self, token: str) -> Actor:
        """Who a bearer token is, or Unauthenticated."""
        now = time.time()
        for provider in self._get_identity_providers():
            actor = provider.whois(token, now)
            if actor is not None:
                self.accounts.check_active(actor)
                self._sign_ins.note(actor, now)
                return actor
        raise Unauthenticated("no identity provider knows this token", "sign in: falaj login")

    def context(
        self, actor: Actor, *, request_id: str = "", purpose: str = "", attempt_kind: str = "job"
    ) -> CallContext:
        """What a call of this actor runs under; naming the request makes its repeats find the first outcome."""
        # A workload stands where it runs, whichever process speaks for it; everybody else where we do.
        zone = actor.zone or self.settings.zone
        if request_id:
            return CallContext(actor, zone, request=request_id, keyed=True, purpose=purpose)
        return CallContext(actor, zone, purpose=purpose, attempt_kind=attempt_kind)

    def system(self) -> CallContext:
        """The house acting for itself: first start, loops."""
        return self.context(Actor("falaj", SYSTEM_TENANT, kind="service", roles=frozenset({"service"})))

    def owner(self) -> Actor:
        """The operating-system user, who owns the folder and with it everything embedded in it."""
        return identify_folder_owner(self.settings.home, self.settings.jurisdiction)

    def deny(self, ctx: CallContext | None, path: str, reason: str) -> None:
        """Record that somebody was turned away at the door."""
        denied_context = ctx or self.context(Actor("anonymous", SYSTEM_TENANT, kind="guest"))
        self.guard.record_denial(denied_context, path, Denied(reason))

    def join(self, role: str, address: str) -> None:
        """Be seen by the other replicas on the same store, as what answers there."""
        from falaj.store.replica_presence import ReplicaPresence

        self._presence = ReplicaPresence(self.ledger, self.replica, role, address)
        self._presence.start()

    def replicas(self) -> "tuple[ReplicaInfo, ...]":
        """Who works with the store, where this process is one of them."""
        return self._presence.seen if self._presence is not None else ()

    def start_loops(self) -> None:
        """Begin the background work: sealing, rotation, collecting, jobs."""
        from falaj.audit.seal_loop import SealLoop
        from falaj.catalog.stage_loop import StageLoop
        from falaj.fleet.telemetry_loop import TelemetryLoop
        from falaj.govern.key_service import KeyRotationLoop
        from falaj.store.backup_manager import BackupLoop
        from falaj.store.maintenance_loops import CollectLoop, ScrubLoop
        from falaj.store.outcome_expiry import OutcomeExpiryLoop

        self._get_identity_providers()  # a server that cannot know anybody says so when it starts
        if self.fence.holds_back(self.start_loops):
            return
        self.desks["clusters"].check_sandbox(self.system())
        collector = self.storage.collector
        loops: list[ReconcileLoop] = [
            CollectLoop(self.ledger, collector),
            ScrubLoop(self.ledger, collector),
            SealLoop(self.ledger, self.audit.sealer, self.settings.seal_s),
            KeyRotationLoop(self._create_rotations()),
            OutcomeExpiryLoop(self.ledger),
            StageLoop(self.ledger, self.catalog, self.zones),
            *self._create_job_loops(),
            TelemetryLoop(self.ledger, self.desks["clusters"], self.settings.home),
        ]
        if self.settings.backup.to:
            loops.append(BackupLoop(self._create_backup_manager()))
        loops += self.audit.timestamp_loops(self.settings.timestamp)
        self._start_loop_runner(loops)

    def stop_loops(self) -> None:
        """Let every loop end its step."""
        self.fence.stop()
        if self._loop_runner is not None:
            self._loop_runner.stop()
            self._loop_runner = None

    def turned(self) -> "tuple[LoopStatus, ...]":
        """How the loops that run in this process do."""
        return self._loop_runner.turned() if self._loop_runner is not None else ()

    @contextmanager
    def working(self) -> Iterator[None]:
        """While entered, jobs go on even where no server runs: their loops run in this process."""
        if self._loop_runner is not None:
            yield
            return
        self.fence.check()
        self._start_loop_runner(self._create_job_loops())
        try:
            with throttle_garbage_collector():
                yield
        finally:
            self.stop_loops()

    def _create_job_loops(self) -> "tuple[ReconcileLoop, ...]":
        from falaj.dispatch.loops import build_loops
        from falaj.flows.flow_loop import FlowLoop
        from falaj.flows.start_loop import StartLoop, WebhookLoop
        from falaj.monitor.monitor_loop import MonitorLoop
        from falaj.serve.serve_loop import ServeLoop
        from falaj.study.sweep_loop import SweepLoop

        dispatch_arguments = self.ledger, self.desks["clusters"], self.track, self.desks["jobs"], self.settings.schedule
        sweep_loop, serve_loop = (
            SweepLoop(self.ledger, self.desks["sweeps"]),
            ServeLoop(self.ledger, self.desks["serve"]),
        )
        flow_service = self.desks["flows"].reveals(self._resolve_secret)
        flow_loops = [loop(self.ledger, flow_service) for loop in (FlowLoop, StartLoop, WebhookLoop)]
        return (
            *build_loops(*dispatch_arguments),
            sweep_loop,
            serve_loop,
            MonitorLoop(self.ledger, self.desks["monitor"]),
            *flow_loops,
        )

    def _start_loop_runner(self, loops: "Iterable[ReconcileLoop]") -> None:
        from falaj.store.reconcile_loop import LoopRunner, system_context

        zone = self.settings.zone
        self._loop_runner = LoopRunner(self.ledger, self.replica, loops, lambda name: system_context(name, zone))
        self._loop_runner.start()
        if self.settings.online.startswith("redis") and "{tenant}" not in self.settings.online:
            Thread(target=self._warn_about_readers, name="online-readers", daemon=True).start()

    def _warn_about_readers(self) -> None:
        """Log at start that the online store cannot keep tenants apart, so that replicas get no features from it."""
        try:
            self.online(SYSTEM_TENANT).admit_reader("")
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
        for store in (self._series_store, *self._online_stores_by_tenant.values()):
            if store is not None:
                store.close()
        for resource in (
            *self._identity_providers,
            *self._object_stores.values(),
            self._root_key_provider,
            self.ledger,
        ):
            resource.close()

    def _open_zone_store(self, zone: str) -> ObjectStore:
        """The blob store of a zone, opened once."""
        if zone not in self._object_stores:
            zone_record = self.zones.view(SYSTEM_TENANT, time.time()).zones.get(zone)
            if zone_record is None:
                raise NotFound(f"there is no zone {zone!r:.60}", "falaj zones list shows them")
            if not zone_record.store:
                raise Invalid(f"the zone {zone} has no store", f"falaj zones change {zone} --more store=…")
            self._object_stores[zone] = self._with_cache(
                zone, _open_backend("blobs", self.settings.at(zone_record.store), {})
            )
        return self._object_stores[zone]

    def _with_cache(self, zone: str, store: ObjectStore) -> ObjectStore:
        """The same store with a cache before it, where it is far and the settings name a place for one."""
        if not self.settings.cache or not getattr(store, "requests", 0):
            return store
        from falaj.store.blob_cache import CachedObjectStore

        folder = Path(self.settings.at(self.settings.cache)).expanduser() / zone
        return CachedObjectStore(store, folder, self.settings.cache_bytes)

    def _open_series(self) -> SeriesStore:
        """Where the points of metrics and telemetry lie; opened once somebody writes or reads them."""
        with self._open_lock:
            self._series_store = self._series_store or _open_backend("series", self.settings.series_url, {})
            return self._series_store

    def online(self, tenant: str) -> "EncryptedOnlineStore":
        """The online feature store of one tenant, encrypted with its keys; opened at the first read or write."""
        store = self._online_stores_by_tenant.get(tenant)
        if store is None:
            address = build_tenant_address(self.settings.at(self.settings.online), tenant)
            with self._open_lock:
                store = self._online_stores_by_tenant.get(tenant) or self._open_online(address, tenant)
                self._online_stores_by_tenant[tenant] = store
        return store

    def _open_online(self, address: str, tenant: str) -> "EncryptedOnlineStore":
        from falaj.asof.encrypted_online_store import EncryptedOnlineStore

        return EncryptedOnlineStore(_open_backend("online", address, {}), partial(self.keyring.online_keys, tenant))

    def _open_executor(self, url: str, options: Mapping[str, Any]) -> Any:
        """What speaks to a cluster; a fenced copy reaches none."""
        self.fence.check()
        return _open_backend("executor", url, options)

    def _resolve_secret(self, ctx: CallContext, reference: str) -> bytes:
        """A secret by reference, for a room that needs it now."""
        return bytes(self.desks["secrets"].resolve(ctx, reference))

    def _serving_arguments(self) -> tuple[Any, Any]:
        """In whose name replicas are asked for, and where what gateways counted lies."""
        return partial(LocalClient, self), self._open_series

    def _create_staging(self) -> Any:
        from falaj.fleet.sandbox import is_single_user
        from falaj.jobs.staging import AttemptStaging

        create_client = partial(LocalClient, self)
        is_single_user_installation = partial(is_single_user, self.settings)
        return AttemptStaging(
            self.ledger,
            self.zones,
            create_client,
            self._resolve_secret,
            self.workloads,
            self.settings.url,
            is_single_user_installation,
        )

    def _create_search_estate(self) -> Any:
        """What a search for a person reads from."""
        from falaj.privacy.search.data_estate import DataEstate

        return DataEstate(self.ledger, self.blobs, self._open_series, self.desks.__getitem__, self._create_collector)

    def _create_rotations(self) -> Any:
        from falaj.govern.key_rotation import KeyRotations

        return KeyRotations(self.keyring)

    def _create_collector(self) -> Any:
        from falaj.store.collector import Collector

        return Collector(self.blobs, BLOB_HOLDER_KINDS)

    def _create_backup_manager(self) -> Any:
        from falaj.audit.backup_setup import create_backup_manager

        open_backend, get_sealer = partial(_open_backend, options={}), lambda: self.audit.sealer
        return create_backup_manager(
            self.blobs, self.keyring, self.zones, get_sealer, self.settings, BLOB_HOLDER_KINDS, open_backend
        )

    def _get_identity_providers(self) -> list[IdentityProvider]:
        """Who can say whose a token is; opened once, with the first token."""
        with self._open_lock:
            if not self._identity_providers:
                self._identity_providers = self._open_providers()
        return self._identity_providers

    def _open_providers(self) -> list[IdentityProvider]:
        options = {"find": self.accounts.lookup, "oidc": self.settings.oidc}
        urls = [url.strip() for url in self.settings.identity.split(",") if url.strip()]
        return [*(_open_backend("identity", url, options) for url in urls), self.workloads]

    def _open_issuer(self, url: str) -> Any:
        """A provider whose tokens build systems exchange for ours: one that the settings name, and no other."""
        if url not in (*self.settings.federation, self.settings.oidc.issuer):
            hint = "whoever runs this installation can add it to the setting `federation`"
            raise Denied(f"this installation does not call {url[:200]}", hint)
        return _open_backend("identity", f"oidc:{url}", {"oidc": OidcSettings(issuer=url)})

    def _dependency_checks(self) -> dict[str, Callable[[], object]]:
        """What this process depends on, and how each dependency is checked."""
        checks: dict[str, Callable[[], object]] = {
            "store": self.ledger.probe,
            "version": self._check_version,
            "blobs": self._check_blobs,
            "keys": self.keyring.permit_key,
        }
        if self.settings.online.startswith("redis"):
            checks["online"] = lambda: probe_backend(self.online(SYSTEM_TENANT))
        return checks

    def _check_version(self) -> None:
        if self._presence is not None and not self._presence.welcome:
            raise Unavailable("the store's schema went on without this version", "upgrade this replica")

    def _check_blobs(self) -> None:
        zone_store = self._open_zone_store(self.settings.zone)
        zone_store = getattr(zone_store, "inner", zone_store)
        if not probe_backend(zone_store):
            zone_store.stat(["ready"])


class LocalClient:
    """The house with a caller bound: `here.zones.list()`. Attributes are desks; texts become what verbs ask for."""

    def __init__(self, server: Server, actor: Actor, purpose: str = "", attempt_kind: str = "job") -> None:
        self.house = server
        self.actor = actor
        self.purpose = purpose
        self._attempt_kind = attempt_kind
        self.address = f"dir:{server.settings.home}"
        self.progress: ProgressReporter = NullProgress()
        self.bytes = ServerByteChannel(self)

    def __getattr__(self, name: str) -> "ServiceProxy":
        if name.startswith("_") or name not in SERVICES:
            raise AttributeError(f"there is no desk {name!r}; there are: {', '.join(SERVICES)}")
        return ServiceProxy(name, self, self._call_operation)

    def __dir__(self) -> list[str]:
        return [*SERVICES, "close"]

    def __enter__(self) -> "LocalClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def working(self) -> AbstractContextManager[None]:
        """While entered, jobs go on even where no server runs."""
        return self.house.working()

    def online(self) -> OnlineStore:
        """The newest features, read here and not asked for over a wire."""
        return self.house.online(self.actor.tenant)

    def token(self) -> str:
        """What an endpoint is called with where nobody signed in: this caller, for minutes, as work and no more."""
        from falaj.govern.people_records import WorkloadIdentity
        from falaj.govern.workload_tokens import WORK_ROLES

        actor, zone = self.actor, self.house.settings.zone
        roles, run_name = actor.roles & WORK_ROLES - {"service"}, f"by-hand-{generate_id()}"
        workload = WorkloadIdentity(run_name, zone, actor.tenant, roles, actor.projects, actor.id, actor.jurisdiction)
        return self.house.workloads.issue(workload, time.time())

    def close(self) -> None:
        """Close the house."""
        self.house.close()

    def _call_operation(self, service_name: str, operation: Operation, arguments: dict[str, Any]) -> Any:
        ctx = self.house.context(self.actor, purpose=self.purpose, attempt_kind=self._attempt_kind)
        return self.house.call(service_name, operation.name, ctx, arguments)


def _open_backend(port: str, url: str, options: Mapping[str, Any]) -> Any:
    return load_plugin(port, url.partition(":")[0])(url, options)


def _retry_on_conflict(create: Callable[[], T], max_tries: int = 10) -> T:
    """What a new house makes for itself; when replicas start together one of them makes it and the others find it."""
    for _ in range(max_tries - 1):
        with suppress(Conflict):
            return create()
    return create()


def _read_toml(settings_file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(settings_file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{settings_file.name} is not TOML: {error}", "correct it, or remove the file to use the defaults"
        ) from error
