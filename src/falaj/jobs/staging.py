"""Staging: files to where an attempt runs and back, by the attempt's own identity, through the same door as anybody."""

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.execute import Attempt
from falaj.core.ref import Ref
from falaj.fleet.records import Cluster
from falaj.fleet.use import tenants
from falaj.govern.destruction import HOLDS
from falaj.govern.refusals import check_usable
from falaj.govern.secrets import parse_reference
from falaj.govern.tokens import WorkloadTokens
from falaj.govern.zones import Zones
from falaj.jobs.attempts import (
    LaunchDetails,
    actor_of,
    attempt_of,
    layout_of,
    sources_of,
    workload_of,
)
from falaj.jobs.facts import spec_in
from falaj.jobs.standing import RestrictedInputs, job_standing, submitter_of
from falaj.jobs.tracing import phase
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

TOKEN_S = 900.0
KEPT_S = 14 * 86_400.0
"""Seconds for which logs of attempts and checkpoints of ended jobs are kept after they were last written to."""
MOST_LOOKED = 1000
_ATTEMPT = re.compile(r"[a-z0-9-]+-([0-9a-f]{12})-[0-9]+")
_JOB = re.compile(r"[0-9a-f]{32}")


class Staging:
    """Makes attempts ready and carries away what they made. Used by many threads; keeps nothing."""

    def __init__(
        self,
        ledger: Ledger,
        zones: Zones,
        act: Callable[[Actor, str], Here],
        resolve: Callable[[Context, str], bytes],
        tokens: WorkloadTokens,
        address: str = "",
        is_single_user: Callable[[Reader], bool] = lambda _tx: False,
    ) -> None:
        self._ledger = ledger
        self._zones = zones
        self.act = act
        self._resolve = resolve
        self._tokens = tokens
        self._address = address
        self._is_single_user = is_single_user

    @phase("stage in")
    def prepare(self, ctx: Context, record: Record, cluster: Cluster) -> Attempt:
        """Everything an attempt needs, in its place; the same again does no harm."""
        body = record.body
        with self._ledger.read(ctx) as tx:
            _check_standing(tx, record)
        self._jurisdiction(ctx, record, cluster.zone)
        if body["inputs"]:  # somebody may have taken their consent back while it waited
            with self._ledger.read(ctx) as tx:
                check_usable(tx, record.key.tenant, body["who"]["purpose"], map(Ref.parse, body["inputs"].values()))
        place = layout_of(cluster, body["attempt"]["id"], body["id"])
        address = self._address or ("agent:" if cluster.address.startswith("agent:") else "")
        if not place.shared and not address and (body["code"] or body["inputs"] or body["outputs"]):
            raise Invalid(
                f"nodes of {cluster.name} share no folder with us, and cannot call us",
                "set url in falaj.toml to the address under which they reach this platform",
            )
        if place.shared:
            wanted = {place.code: body["code"]} if body["code"] else {}
            wanted |= {place.input(role): ref for role, ref in body["inputs"].items()}
            ours = cluster.address.startswith("process:")  # there launchers make what is not there
            if wanted or body["outputs"] or not ours:
                _make(place.base)
            if not ours:
                _make(place.checkpoints)
                _make(place.code)
            if wanted:
                here = self.act(self.actor(ctx, record, cluster.zone), body["who"]["purpose"])
                for path, ref in wanted.items():
                    here.catalog.checkout(Ref.parse(ref), path)
            for name in body["outputs"]:
                Path(place.output(name)).mkdir(parents=True, exist_ok=True)
        token = self.token(ctx, record, cluster.zone) if not place.shared and address else ""
        single_user = bool(body["who"].get("owns_folder")) and self.is_single_user(ctx)
        details = LaunchDetails(address, self._values(ctx, record, cluster), token, single_user)
        return attempt_of(record, cluster, details)

    def is_single_user(self, ctx: Context) -> bool:
        """True when only the owner of the folder uses this installation; the owner's attempts then need no sandbox."""
        with self._ledger.read(ctx) as tx:
            return self._is_single_user(tx)

    @phase("publish")
    def publish(self, ctx: Context, record: Record, cluster: Cluster) -> dict[str, str]:
        """The outputs of an attempt that ended well, as versions; by name, pinned."""
        body = record.body
        place = layout_of(cluster, body["attempt"]["id"], body["id"])
        here = self.act(self.actor(ctx, record, cluster.zone), body["who"]["purpose"])
        made: dict[str, str] = {}
        for name, ref in body["outputs"].items():
            if not place.shared:
                made[name] = _made_by(here, Ref.parse(ref), body["run"])
                continue
            folder = Path(place.output(name))
            if not folder.is_dir() or not any(folder.iterdir()):
                raise NotFound(f"it wrote no output {name}", f"write files to the folder FALAJ_OUTPUT_{name.upper()}")
            _take_over(Path(place.base), folder)
            used = {role: Ref.parse(text) for role, text in sources_of(body).items()}
            done = here.catalog.publish(
                Ref.parse(ref).bare, str(folder), inputs=used, message=f"made by {record.ref.bare}"
            )
            made[name] = str(done.ref)
        return made

    def clear(self, record: Record, cluster: Cluster, attempt: str) -> None:
        """Take away copies of what is kept elsewhere; logs stay."""
        place = layout_of(cluster, attempt, record.body["id"])
        if place.shared:
            for name in ("code", *(name for name in ("inputs", "outputs") if record.body[name])):
                _remove(place.below(name))

    def sweep(
        self,
        ctx: Context,
        cluster: Cluster,
        live: frozenset[str],
        unfinished: frozenset[str],
        forget: Callable[[str], None],
    ) -> None:
        """Delete what nobody touched for KEPT_S: folders of attempts that are over, and checkpoints of ended jobs.

        `live` are the attempts that run, `unfinished` the ids of jobs that have not ended: their checkpoints stay,
        however old. Both stay while a legal hold or an open breach keeps the job, or what it was made from. Jobs of
        which there is no record have ended.
        """
        if not cluster.folder:
            return
        old = time.time() - KEPT_S
        for folder in _list_folders(cluster.folder):
            attempt = _ATTEMPT.fullmatch(folder.name)
            is_old = attempt is not None and folder.name not in live and folder.stat().st_mtime < old
            if attempt and is_old and not self._is_held(ctx, "id_end", attempt[1]):
                forget(folder.name)
                shutil.rmtree(folder, ignore_errors=True)
        for folder in _list_folders(str(Path(layout_of(cluster, "", "").checkpoints))):
            is_ended = _JOB.fullmatch(folder.name) is not None and folder.name not in unfinished
            if is_ended and not _is_touched_since(folder, old) and not self._is_held(ctx, "id", folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    def _is_held(self, ctx: Context, term: str, value: str) -> bool:
        """True while a legal hold or an open breach stands on a job with this term, or on what it was made from."""
        with self._ledger.read(ctx) as tx:
            by_tenant = {
                tenant: tx.find("job", tenant=tenant, terms={term: value}).records for tenant in tenants(self._ledger)
            }
        return any(
            duty.rule in HOLDS
            for tenant, records in by_tenant.items()
            if records
            for duties in self._zones.find_duties(replace(ctx, tenant=tenant), records).values()
            for duty in duties
        )

    def token(self, ctx: Context, record: Record, zone: str) -> str:
        """The next token of an attempt that proved who it is."""
        return self._tokens.issue(workload_of(self.actor(ctx, record, zone)), ctx.now(), TOKEN_S)

    def actor(self, ctx: Context, record: Record, zone: str) -> Actor:
        """Who an attempt is, in this zone."""
        jurisdiction = self._jurisdiction(ctx, record, zone)
        with self._ledger.read(ctx) as tx:
            return actor_of(tx, record, zone, jurisdiction)

    def _jurisdiction(self, ctx: Context, record: Record, zone: str) -> str:
        """Whose law holds in a zone; NotFound where the job's tenant has no such zone any more."""
        found = self._zones.view(record.key.tenant, ctx.now()).zones.get(zone)
        if found is None:
            raise NotFound(f"there is no zone {zone!r:.60}", "falaj zones list shows them")
        return found.jurisdiction

    def _values(self, ctx: Context, record: Record, cluster: Cluster) -> dict[str, str]:
        """The secrets by variable, resolved at the last moment, in the cluster's zone; each is recorded.

        The submitter's right to use each of them is checked again: a grant may have been withdrawn since.
        """
        secrets = spec_in(record).secrets
        if not secrets:
            return {}
        who = record.body["who"]
        with self._ledger.read(ctx) as tx:
            submitter = replace(submitter_of(tx, record), kind="service", jurisdiction=who["jurisdiction"])
        for reference in secrets.values():
            self.act(submitter, who["purpose"]).secrets.use(parse_reference(reference), record.key.project)
        asked = replace(ctx, actor=self.actor(ctx, record, cluster.zone), tenant=record.key.tenant, zone=cluster.zone)
        try:
            return {name: self._resolve(asked, reference).decode() for name, reference in secrets.items()}
        except UnicodeDecodeError:
            raise Invalid("a secret of this job is not text", "variables hold texts") from None


def _check_standing(tx: Reader, record: Record) -> None:
    """Raise Conflict while a job is held back; not Denied: it is not launched, and waits until the reason is gone."""
    if why := job_standing(tx, record).reason:
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


def brings_files(record: Record) -> bool:
    """Whether making an attempt of a job ready may take long."""
    body = record.body
    return bool(body["code"] or body["inputs"] or body["outputs"] or spec_in(record).secrets)


def _make(folder: str) -> None:
    """Make a folder, and those it lies in, where it is not there."""
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102 - for every attempt
    except FileExistsError:
        return
    except FileNotFoundError:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)


def _remove(folder: str) -> None:
    """Take a folder away, be it there or not; of most attempts it is empty, or was never made."""
    try:
        os.rmdir(folder)  # noqa: PTH106 - for every attempt
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _made_by(here: Here, name: Ref, run: str) -> str:
    """The newest version that says it was made by a run: nodes that share no folder with us publish by themselves."""
    versions = here.catalog.list(kind=name.kind, project=name.project, name=name.name, limit=MOST_LOOKED).versions
    for version in versions:
        if "run" in version.inputs and str(version.inputs["run"].bare) == run:
            return str(version.ref)
    raise NotFound(f"it published no version of {name.bare}", "its log says why")


def _take_over(base: Path, folder: Path) -> None:
    """Denied when an output is not where it should be. Its owner may be somebody else, who would have us read what only
    we may: where we are root it becomes ours first, so that nothing leads elsewhere while we read."""
    for path in (base, folder.parent, folder):
        try:
            file = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise Denied(f"the output {folder.name} leads elsewhere", "write files into the folder itself") from error
        try:
            _own(file)
        finally:
            os.close(file)
    # What was made while we looked is found when we look again.
    while sum(_own(file) for *_, file in os.fwalk(folder, follow_symlinks=False)):
        pass


def _own(file: int) -> bool:
    """Make a folder ours; whether it was somebody else's."""
    if os.geteuid() != 0 or os.fstat(file).st_uid == 0:
        return False
    os.fchown(file, 0, 0)
    os.fchmod(file, 0o700)
    return True
