"""Staging: files to where an attempt runs and back, by the attempt's own identity, through the same door as anybody."""

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from falaj.core.client_command import Client
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.executor import Attempt
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import list_tenants
from falaj.fleet.records import Cluster
from falaj.govern.destruction_checks import HOLD_RULES
from falaj.govern.refusals import require_usable
from falaj.govern.secret_service import parse_secret_reference
from falaj.govern.workload_tokens import WorkloadTokens
from falaj.govern.zones import ZoneService
from falaj.jobs.attempts import (
    LaunchDetails,
    build_attempt,
    build_attempt_actor,
    build_layout,
    list_sources,
    to_workload,
)
from falaj.jobs.job_tracing import trace_phase
from falaj.jobs.scheduler_facts import read_spec
from falaj.jobs.submitter_standing import RestrictedInputs, read_job_standing, read_submitter
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

TOKEN_LIFETIME_S = 900.0
KEEP_S = 14 * 86_400.0
"""Seconds for which logs of attempts and checkpoints of ended jobs are kept after they were last written to."""
MAX_VERSIONS_CHECKED = 1000
_ATTEMPT = re.compile(r"[a-z0-9-]+-([0-9a-f]{12})-[0-9]+")
_JOB = re.compile(r"[0-9a-f]{32}")


class AttemptStaging:
    """Makes attempts ready and carries away what they made. Used by many threads; keeps nothing."""

    def __init__(
        self,
        ledger: Ledger,
        zones: ZoneService,
        open_client: Callable[[Actor, str], Client],
        resolve: Callable[[CallContext, str], bytes],
        tokens: WorkloadTokens,
        address: str = "",
        is_single_user: Callable[[LedgerReader], bool] = lambda _tx: False,
    ) -> None:
        self._ledger = ledger
        self._zones = zones
        self.act = open_client
        self._resolve = resolve
        self._tokens = tokens
        self._address = address
        self._is_single_user = is_single_user

    @trace_phase("stage in")
    def prepare(self, ctx: CallContext, record: LedgerRecord, cluster: Cluster) -> Attempt:
        """Everything an attempt needs, in its place; the same again does no harm."""
        body = record.body
        with self._ledger.read(ctx) as tx:
            _check_standing(tx, record)
        self._read_jurisdiction(ctx, record, cluster.zone)
        if body["inputs"]:  # somebody may have taken their consent back while it waited
            with self._ledger.read(ctx) as tx:
                require_usable(tx, record.key.tenant, body["who"]["purpose"], map(Ref.parse, body["inputs"].values()))
        layout = build_layout(cluster, body["attempt"]["id"], body["id"])
        address = self._address or ("agent:" if cluster.address.startswith("agent:") else "")
        if not layout.shared and not address and (body["code"] or body["inputs"] or body["outputs"]):
            raise Invalid(
                f"nodes of {cluster.name} share no folder with us, and cannot call us",
                "set url in falaj.toml to the address under which they reach this platform",
            )
        if layout.shared:
            ref_by_path = {layout.code: body["code"]} if body["code"] else {}
            ref_by_path |= {layout.input(role): ref for role, ref in body["inputs"].items()}
            is_local = cluster.address.startswith("process:")  # there launchers make what is not there
            if ref_by_path or body["outputs"] or not is_local:
                _make_folder(layout.base)
            if not is_local:
                _make_folder(layout.checkpoints)
                _make_folder(layout.code)
            if ref_by_path:
                client = self.act(self.actor(ctx, record, cluster.zone), body["who"]["purpose"])
                for path, ref in ref_by_path.items():
                    client.catalog.checkout(Ref.parse(ref), path)
            for name in body["outputs"]:
                Path(layout.output(name)).mkdir(parents=True, exist_ok=True)
        token = self.token(ctx, record, cluster.zone) if not layout.shared and address else ""
        single_user = bool(body["who"].get("owns_folder")) and self.is_single_user(ctx)
        details = LaunchDetails(address, self._resolve_secrets(ctx, record, cluster), token, single_user)
        return build_attempt(record, cluster, details)

    def is_single_user(self, ctx: CallContext) -> bool:
        """True when only the owner of the folder uses this installation; the owner's attempts then need no sandbox."""
        with self._ledger.read(ctx) as tx:
            return self._is_single_user(tx)

    @trace_phase("publish")
    def publish(self, ctx: CallContext, record: LedgerRecord, cluster: Cluster) -> dict[str, str]:
        """The outputs of an attempt that ended well, as versions; by name, pinned."""
        body = record.body
        layout = build_layout(cluster, body["attempt"]["id"], body["id"])
        client = self.act(self.actor(ctx, record, cluster.zone), body["who"]["purpose"])
        published: dict[str, str] = {}
        for name, ref in body["outputs"].items():
            if not layout.shared:
                published[name] = _find_published_version(client, Ref.parse(ref), body["run"])
                continue
            folder = Path(layout.output(name))
            if not folder.is_dir() or not any(folder.iterdir()):
                raise NotFound(f"it wrote no output {name}", f"write files to the folder FALAJ_OUTPUT_{name.upper()}")
            _take_ownership(Path(layout.base), folder)
            sources = {role: Ref.parse(text) for role, text in list_sources(body).items()}
            version = client.catalog.publish(
                Ref.parse(ref).bare, str(folder), inputs=sources, message=f"made by {record.ref.bare}"
            )
            published[name] = str(version.ref)
        return published

    def clear(self, record: LedgerRecord, cluster: Cluster, attempt_id: str) -> None:
        """Take away copies of what is kept elsewhere; logs stay."""
        layout = build_layout(cluster, attempt_id, record.body["id"])
        if layout.shared:
            for name in ("code", *(name for name in ("inputs", "outputs") if record.body[name])):
                _remove_folder(layout.below(name))

    def sweep(
        self,
        ctx: CallContext,
        cluster: Cluster,
        live_attempts: frozenset[str],
        unfinished_jobs: frozenset[str],
        forget: Callable[[str], None],
    ) -> None:
        """Delete what nobody touched for KEPT_S: folders of attempts that are over, and checkpoints of ended jobs.

        `live_attempts` are the attempts that run, `unfinished_jobs` the ids of jobs that have not ended: their
        checkpoints stay, however old. Both stay while a legal hold or an open breach keeps the job, or what it was made
        from. Jobs of which there is no record have ended.
        """
        if not cluster.folder:
            return
        oldest = time.time() - KEEP_S
        for folder in _list_folders(cluster.folder):
            attempt = _ATTEMPT.fullmatch(folder.name)
            is_old = attempt is not None and folder.name not in live_attempts and folder.stat().st_mtime < oldest
            if attempt and is_old and not self._is_held(ctx, "id_end", attempt[1]):
                forget(folder.name)
                shutil.rmtree(folder, ignore_errors=True)
        for folder in _list_folders(str(Path(build_layout(cluster, "", "").checkpoints))):
            is_ended = _JOB.fullmatch(folder.name) is not None and folder.name not in unfinished_jobs
            if is_ended and not _is_touched_since(folder, oldest) and not self._is_held(ctx, "id", folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    def _is_held(self, ctx: CallContext, term: str, value: str) -> bool:
        """True while a legal hold or an open breach stands on a job with this term, or on what it was made from."""
        with self._ledger.read(ctx) as tx:
            by_tenant = {
                tenant: tx.find("job", tenant=tenant, terms={term: value}).records
                for tenant in list_tenants(self._ledger)
            }
        return any(
            duty.rule in HOLD_RULES
            for tenant, records in by_tenant.items()
            if records
            for duties in self._zones.find_duties(replace(ctx, tenant=tenant), records).values()
            for duty in duties
        )

    def token(self, ctx: CallContext, record: LedgerRecord, zone: str) -> str:
        """The next token of an attempt that proved who it is."""
        return self._tokens.issue(to_workload(self.actor(ctx, record, zone)), ctx.now(), TOKEN_LIFETIME_S)

    def actor(self, ctx: CallContext, record: LedgerRecord, zone: str) -> Actor:
        """Who an attempt is, in this zone."""
        jurisdiction = self._read_jurisdiction(ctx, record, zone)
        with self._ledger.read(ctx) as tx:
            return build_attempt_actor(tx, record, zone, jurisdiction)

    def _read_jurisdiction(self, ctx: CallContext, record: LedgerRecord, zone: str) -> str:
        """Whose law holds in a zone; NotFound where the job's tenant has no such zone any more."""
        zone_view = self._zones.view(record.key.tenant, ctx.now()).zones.get(zone)
        if zone_view is None:
            raise NotFound(f"there is no zone {zone!r:.60}", "falaj zones list shows them")
        return zone_view.jurisdiction

    def _resolve_secrets(self, ctx: CallContext, record: LedgerRecord, cluster: Cluster) -> dict[str, str]:
        """The secrets by variable, resolved at the last moment, in the cluster's zone; each is recorded.

        The submitter's right to use each of them is checked again: a grant may have been withdrawn since.
        """
        secrets = read_spec(record).secrets
        if not secrets:
            return {}
        submitter_body = record.body["who"]
        with self._ledger.read(ctx) as tx:
            submitter = replace(read_submitter(tx, record), kind="service", jurisdiction=submitter_body["jurisdiction"])
        for reference in secrets.values():
            self.act(submitter, submitter_body["purpose"]).secrets.use(
                parse_secret_reference(reference), record.key.project
            )
        attempt_ctx = replace(
            ctx, actor=self.actor(ctx, record, cluster.zone), tenant=record.key.tenant, zone=cluster.zone
        )
        try:
            return {name: self._resolve(attempt_ctx, reference).decode() for name, reference in secrets.items()}
        except UnicodeDecodeError:
            raise Invalid("a secret of this job is not text", "variables hold texts") from None


def _check_standing(tx: LedgerReader, record: LedgerRecord) -> None:
    """Raise Conflict while a job is held back; not Denied: it is not launched, and waits until the reason is gone."""
    if why := read_job_standing(tx, record).reason:
        raise Conflict(why, "an administrator of the tenant gives roles, and resumes accounts", record.ref.bare)
    if why := RestrictedInputs().find_standing(record, tx.key).reason:
        hint = "submit it with a version that is not restricted: falaj catalog list shows the newest"
        raise Conflict(why, hint, record.ref.bare)


def _list_folders(folder: str) -> list[Path]:
    try:
        return [path for path in Path(folder).iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:  # nothing ran there yet, or it is not mounted
        return []


def _is_touched_since(folder: Path, moment: float) -> bool:
    """Whether something below a folder was written since; a save may write deep in it, and leave its own time."""
    with suppress(FileNotFoundError):  # somebody else deletes it
        for _, _, names, descriptor in os.fwalk(folder, follow_symlinks=False):
            if os.fstat(descriptor).st_mtime >= moment:
                return True
            if any(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime >= moment for name in names):
                return True
    return False


def has_files_to_stage(record: LedgerRecord) -> bool:
    """Whether making an attempt of a job ready may take long."""
    body = record.body
    return bool(body["code"] or body["inputs"] or body["outputs"] or read_spec(record).secrets)


def _make_folder(folder: str) -> None:
    """Make a folder, and those it lies in, where it is not there."""
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102 - for every attempt
    except FileExistsError:
        return
    except FileNotFoundError:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)


def _remove_folder(folder: str) -> None:
    """Take a folder away, be it there or not; of most attempts it is empty, or was never made."""
    try:
        os.rmdir(folder)  # noqa: PTH106 - for every attempt
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _find_published_version(client: Client, output: Ref, run_ref: str) -> str:
    """The newest version that says it was made by a run: nodes that share no folder with us publish by themselves."""
    versions = client.catalog.list(
        kind=output.kind, project=output.project, name=output.name, limit=MAX_VERSIONS_CHECKED
    ).versions
    for version in versions:
        if "run" in version.inputs and str(version.inputs["run"].bare) == run_ref:
            return str(version.ref)
    raise NotFound(f"it published no version of {output.bare}", "its log says why")


def _take_ownership(base: Path, folder: Path) -> None:
    """Denied when an output is not where it should be. Its owner may be somebody else, who would have us read what only
    we may: where we are root it becomes ours first, so that nothing leads elsewhere while we read."""
    for path in (base, folder.parent, folder):
        try:
            descriptor = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise Denied(f"the output {folder.name} leads elsewhere", "write files into the folder itself") from error
        try:
            _own_folder(descriptor)
        finally:
            os.close(descriptor)
    # What was made while we looked is found when we look again.
    while sum(_own_folder(descriptor) for *_, descriptor in os.fwalk(folder, follow_symlinks=False)):
        pass


def _own_folder(descriptor: int) -> bool:
    """Make a folder ours; whether it was somebody else's."""
    if os.geteuid() != 0 or os.fstat(descriptor).st_uid == 0:
        return False
    os.fchown(descriptor, 0, 0)
    os.fchmod(descriptor, 0o700)
    return True
