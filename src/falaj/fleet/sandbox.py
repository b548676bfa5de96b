"""The sandbox of attempts on this machine: what its executor is told, who may run without, and what it enforces."""

import logging
import os
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Invalid
from falaj.core.executor import Executor, SupportsSandbox
from falaj.core.settings import Settings
from falaj.fleet.records import Cluster
from falaj.store.ledger import LedgerReader

_log = logging.getLogger(__name__)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LOCAL_IDENTITY, _FIRST_ACCOUNT = "local:", "admin"


def build_options(settings: Settings) -> dict[str, str]:
    """The choice, where the platform answers, and what no attempt may see."""
    urls = (settings.store, settings.blobs, settings.secrets, settings.online, settings.series, settings.backup.to)
    store_paths = [settings.at(url).partition(":")[2].partition("?")[0] for url in urls]
    # An address with a place for each tenant: what lies around these places is hidden whole.
    store_paths = [
        path.partition("{tenant}")[0].rpartition("/")[0] if "{tenant}" in path else path for path in store_paths
    ]
    store_paths += [f"{path}-wal" for path in store_paths if path.endswith(".db")]
    hidden = [
        path
        for path in (settings.home, settings.cache, settings.tls.key, *store_paths)
        if path.startswith(("/", "~")) and not path.startswith("//")
    ]
    platform = settings.url or f"{'https' if settings.tls.cert else 'http'}://{settings.listen}"
    base_options = {"sandbox": settings.sandbox, "platform": platform, "online": settings.at(settings.online)}
    return {**base_options, "hidden": ",".join(dict.fromkeys(hidden))}


def find_shared_folders(tx: LedgerReader, clusters: Iterable[Cluster]) -> list[str]:
    """What several tenants have files in beside the platform's own folders: attempts and checkpoints of every cluster,
    and the stores of zones. A sandbox shows an attempt its own part of them."""
    folders = [folder for cluster in clusters for folder in (cluster.folder, cluster.checkpoints)]
    store_urls = (
        str(record.body.get("store", "")) for record in tx.find("zone", tenant=SYSTEM_TENANT, limit=1000).records
    )
    folders += [store.removeprefix("dir:").partition("?")[0] for store in store_urls if store.startswith("dir:/")]
    return list(dict.fromkeys(filter(None, folders)))


def is_single_user(settings: Settings, tx: LedgerReader) -> bool:
    """True when only the owner of an embedded folder can use this installation: it answers on loopback alone, has
    no identity provider, no tenant, and no account but the one that its first start made. The owner's attempts then run
    without a sandbox, since there is no other account to protect from them."""
    host = settings.listen.rpartition(":")[0].strip("[]")
    is_reachable = host not in _LOOPBACK or settings.url or settings.hosts
    if is_reachable or settings.oidc.issuer or settings.identity.strip() != _LOCAL_IDENTITY:
        return False
    if tx.find("tenant", tenant=SYSTEM_TENANT, limit=1).records:
        return False
    people = tx.find("person", tenant=SYSTEM_TENANT, limit=2).records
    return all(person.key.name == _FIRST_ACCOUNT for person in people)


def merge_options(server_options: Mapping[str, str], address: str, options: Mapping[str, str]) -> dict[str, str]:
    """For one cluster: its own words come before the house's, but lower nothing that the house requires or hides."""
    cluster_options = {**dict(parse_qsl(address.partition("?")[2])), **options}
    inherited = {name: value for name, value in server_options.items() if name not in cluster_options}
    hidden = ",".join(filter(None, (server_options.get("hidden"), cluster_options.get("hidden"))))
    _check_writable(cluster_options.get("writable", ""), server_options.get("hidden", ""))
    strict = {"sandbox": "required"} if server_options["sandbox"] == "required" else {}
    return {**inherited, **options, **({"hidden": hidden} if hidden else {}), **strict}


def _check_writable(writable: str, hidden: str) -> None:
    """Refuse to show attempts a folder of the platform: its home, keys, ledger or blobs."""
    for path in filter(None, writable.split(",")):
        for folder in filter(None, hidden.split(",")):
            if f"{_resolve_path(path)}/".startswith(f"{_resolve_path(folder)}/"):
                hint = "name a folder of its own, for example a scratch disk"
                raise Invalid(f"writable: expected a folder outside of the platform's own, got {path}", hint)


def _resolve_path(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111


def find_unsandboxed(
    server_options: Mapping[str, str], address: str, options: Mapping[str, str], single_user: bool
) -> str:
    """Whose jobs run without a sandbox on a cluster, a key of UNSANDBOXED; empty for none."""
    cluster_options = {**dict(parse_qsl(address.partition("?")[2])), **options}
    scheme = address.partition(":")[0]
    if scheme == "ray":
        return "tenants" if cluster_options.get("shared") == "tenants" else "cluster"
    if scheme == "slurm":
        return "submitter" if cluster_options.get("sandbox", "off") == "off" else ""
    if scheme != "process":
        return ""
    choice = {**cluster_options, **merge_options(server_options, address, options)}.get("sandbox", "off")
    return "everybody" if choice == "off" else "owner" if choice == "best" and single_user else ""


UNSANDBOXED = {
    "owner": "jobs of the folder's owner run without a sandbox",
    "everybody": "all jobs run without a sandbox, as the platform's user",
    "submitter": "jobs run without a sandbox, as the Unix user of each submitter",
    "cluster": "jobs run without a sandbox, and Ray separates nothing: each can read and change all others there",
    "tenants": "jobs of several tenants run without a sandbox, and Ray separates nothing: each can read and change all "
    "others there",
}
"""Whose jobs run without a sandbox, and as whom: in words."""
_ELSEWHERE = "run these jobs on process:, kubernetes:, or slurm: with sandbox=calls"
_HINTS = {
    "submitter": "let launchers sandbox attempts on the nodes: --more sandbox=calls",
    "cluster": _ELSEWHERE,
    "tenants": _ELSEWHERE,
}


def check_requirement(server_options: Mapping[str, str], address: str, options: Mapping[str, str]) -> None:
    """Raise Invalid where this installation requires a sandbox and attempts of the cluster would run without."""
    if server_options["sandbox"] == "required" and (
        unsandboxed_key := find_unsandboxed(server_options, address, options, single_user=False)
    ):
        scheme = address.partition(":")[0]
        raise Invalid(f'{scheme}: sandbox = "required", but {UNSANDBOXED[unsandboxed_key]}', _HINTS[unsandboxed_key])


def separate_tenants(address: str, options: Mapping[str, str], tenants: tuple[str, ...]) -> tuple[str, ...]:
    """The tenants whose jobs may run on a Ray cluster: a single one, by default the system tenant; Invalid for several,
    unless an operator declared the cluster as shared."""
    if find_unsandboxed({}, address, options, single_user=False) == "tenants":
        return tenants
    if len(tenants) > 1 or "*" in tenants:
        raise Invalid(
            f"ray: separates nothing between jobs: expected a single tenant, got {', '.join(tenants)}",
            "declare a Ray cluster for each tenant; or accept that they read each other's data: --more shared=tenants",
        )
    return tenants or (SYSTEM_TENANT,)


def describe_executor(executor: Executor) -> str:
    """What an executor enforces, for people; empty where it is another's business."""
    return describe_enforced(executor.enforced()) if isinstance(executor, SupportsSandbox) else ""


def describe_enforced(enforced: Mapping[str, str]) -> str:
    """What is enforced and by what, and then what is not."""
    enforced_texts = [f"{name}: {mechanism}" for name, mechanism in enforced.items() if mechanism]
    missing = [name for name, mechanism in enforced.items() if not mechanism]
    return "; ".join([*enforced_texts, *([f"NOT enforced: {', '.join(missing)}"] if missing else [])])


def warn_unenforced(executor: Executor) -> None:
    """A warning for whoever reads the log, where this machine cannot enforce everything."""
    enforced = executor.enforced() if isinstance(executor, SupportsSandbox) else {}
    if missing := [name for name, mechanism in enforced.items() if not mechanism]:
        _log.warning("the sandbox of attempts is not whole on this machine", extra={"missing": ", ".join(missing)})


def warn_unsandboxed(cluster: str, unsandboxed_key: str) -> None:
    """Log that attempts of a cluster run without a sandbox."""
    if unsandboxed_key:
        _log.warning(
            "attempts of a cluster run without a sandbox",
            extra={"cluster": cluster, "why": UNSANDBOXED[unsandboxed_key]},
        )
