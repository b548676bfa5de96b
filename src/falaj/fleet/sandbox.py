"""The sandbox of attempts on this machine: what its executor is told, who may run without, and what it enforces."""

import logging
import os
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from falaj.core.context import HOUSE
from falaj.core.errors import Invalid
from falaj.core.execute import CanCage, Executor
from falaj.core.settings import Settings
from falaj.fleet.records import Cluster
from falaj.store.ledger import Reader

_log = logging.getLogger(__name__)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LOCAL_IDENTITY, _FIRST_ACCOUNT = "local:", "admin"


def options_of(settings: Settings) -> dict[str, str]:
    """The choice, where the platform answers, and what no attempt may see."""
    urls = (settings.store, settings.blobs, settings.secrets, settings.online, settings.series, settings.backup.to)
    named = [settings.at(url).partition(":")[2].partition("?")[0] for url in urls]
    # An address with a place for each tenant: what lies around these places is hidden whole.
    named = [path.partition("{tenant}")[0].rpartition("/")[0] if "{tenant}" in path else path for path in named]
    named += [f"{path}-wal" for path in named if path.endswith(".db")]
    hidden = [
        path
        for path in (settings.home, settings.cache, settings.tls.key, *named)
        if path.startswith(("/", "~")) and not path.startswith("//")
    ]
    platform = settings.url or f"{'https' if settings.tls.cert else 'http'}://{settings.listen}"
    known = {"sandbox": settings.sandbox, "platform": platform, "online": settings.at(settings.online)}
    return {**known, "hidden": ",".join(dict.fromkeys(hidden))}


def find_shared_folders(tx: Reader, clusters: Iterable[Cluster]) -> list[str]:
    """What several tenants have files in beside the platform's own folders: attempts and checkpoints of every cluster,
    and the stores of zones. A sandbox shows an attempt its own part of them."""
    folders = [folder for cluster in clusters for folder in (cluster.folder, cluster.checkpoints)]
    stores = (str(record.body.get("store", "")) for record in tx.find("zone", tenant=HOUSE, limit=1000).records)
    folders += [store.removeprefix("dir:").partition("?")[0] for store in stores if store.startswith("dir:/")]
    return list(dict.fromkeys(filter(None, folders)))


def is_single_user(settings: Settings, tx: Reader) -> bool:
    """True when only the owner of an embedded folder can use this installation: it answers on loopback alone, has
    no identity provider, no tenant, and no account but the one that its first start made. The owner's attempts then run
    without a sandbox, since there is no other account to protect from them."""
    host = settings.listen.rpartition(":")[0].strip("[]")
    reached = host not in _LOOPBACK or settings.url or settings.hosts
    if reached or settings.oidc.issuer or settings.identity.strip() != _LOCAL_IDENTITY:
        return False
    if tx.find("tenant", tenant=HOUSE, limit=1).records:
        return False
    people = tx.find("person", tenant=HOUSE, limit=2).records
    return all(person.key.name == _FIRST_ACCOUNT for person in people)


def chosen(house: Mapping[str, str], address: str, options: Mapping[str, str]) -> dict[str, str]:
    """For one cluster: its own words come before the house's, but lower nothing that the house requires or hides."""
    own = {**dict(parse_qsl(address.partition("?")[2])), **options}
    kept = {name: value for name, value in house.items() if name not in own}
    hidden = ",".join(filter(None, (house.get("hidden"), own.get("hidden"))))
    _check_writable(own.get("writable", ""), house.get("hidden", ""))
    strict = {"sandbox": "required"} if house["sandbox"] == "required" else {}
    return {**kept, **options, **({"hidden": hidden} if hidden else {}), **strict}


def _check_writable(writable: str, hidden: str) -> None:
    """Refuse to show attempts a folder of the platform: its home, keys, ledger or blobs."""
    for path in filter(None, writable.split(",")):
        for folder in filter(None, hidden.split(",")):
            if f"{_resolve(path)}/".startswith(f"{_resolve(folder)}/"):
                hint = "name a folder of its own, for example a scratch disk"
                raise Invalid(f"writable: expected a folder outside of the platform's own, got {path}", hint)


def _resolve(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111


def unsandboxed(house: Mapping[str, str], address: str, options: Mapping[str, str], single_user: bool) -> str:
    """Whose jobs run without a sandbox on a cluster, a key of UNSANDBOXED; empty for none."""
    own = {**dict(parse_qsl(address.partition("?")[2])), **options}
    scheme = address.partition(":")[0]
    if scheme == "ray":
        return "tenants" if own.get("shared") == "tenants" else "cluster"
    if scheme == "slurm":
        return "submitter" if own.get("sandbox", "off") == "off" else ""
    if scheme != "process":
        return ""
    choice = {**own, **chosen(house, address, options)}.get("sandbox", "off")
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


def check_requirement(house: Mapping[str, str], address: str, options: Mapping[str, str]) -> None:
    """Raise Invalid where this installation requires a sandbox and attempts of the cluster would run without."""
    if house["sandbox"] == "required" and (whose := unsandboxed(house, address, options, single_user=False)):
        scheme = address.partition(":")[0]
        raise Invalid(f'{scheme}: sandbox = "required", but {UNSANDBOXED[whose]}', _HINTS[whose])


def separate_tenants(address: str, options: Mapping[str, str], tenants: tuple[str, ...]) -> tuple[str, ...]:
    """The tenants whose jobs may run on a Ray cluster: a single one, by default the system tenant; Invalid for several,
    unless an operator declared the cluster as shared."""
    if unsandboxed({}, address, options, single_user=False) == "tenants":
        return tenants
    if len(tenants) > 1 or "*" in tenants:
        raise Invalid(
            f"ray: separates nothing between jobs: expected a single tenant, got {', '.join(tenants)}",
            "declare a Ray cluster for each tenant; or accept that they read each other's data: --more shared=tenants",
        )
    return tenants or (HOUSE,)


def told(executor: Executor) -> str:
    """What an executor enforces, for people; empty where it is another's business."""
    return in_words(executor.enforced()) if isinstance(executor, CanCage) else ""


def in_words(enforced: Mapping[str, str]) -> str:
    """What is enforced and by what, and then what is not."""
    good = [f"{name}: {how}" for name, how in enforced.items() if how]
    bad = [name for name, how in enforced.items() if not how]
    return "; ".join([*good, *([f"NOT enforced: {', '.join(bad)}"] if bad else [])])


def say_at_start(executor: Executor) -> None:
    """A warning for whoever reads the log, where this machine cannot enforce everything."""
    enforced = executor.enforced() if isinstance(executor, CanCage) else {}
    if missing := [name for name, how in enforced.items() if not how]:
        _log.warning("the sandbox of attempts is not whole on this machine", extra={"missing": ", ".join(missing)})


def warn_unsandboxed(cluster: str, whose: str) -> None:
    """Log that attempts of a cluster run without a sandbox."""
    if whose:
        _log.warning(
            "attempts of a cluster run without a sandbox", extra={"cluster": cluster, "why": UNSANDBOXED[whose]}
        )
