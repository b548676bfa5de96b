"""The sandbox of attempts on this machine: what its executor is told, who may run without, and what it enforces."""

import logging
import os
from collections.abc import Mapping
from urllib.parse import parse_qsl

from falaj.core.context import HOUSE
from falaj.core.errors import Invalid
from falaj.core.execute import CanCage, Executor
from falaj.core.settings import Settings
from falaj.store.ledger import Reader

_log = logging.getLogger(__name__)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LOCAL_IDENTITY, _FIRST_ACCOUNT = "local:", "admin"


def options_of(settings: Settings) -> dict[str, str]:
    """The choice, where the platform answers, and what no attempt may see."""
    urls = (settings.store, settings.blobs, settings.secrets, settings.online, settings.series)
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
    """Whose jobs run without a sandbox on a cluster of this machine: `owner`, `everybody`, or empty for none."""
    if not address.startswith("process:"):
        return ""
    choice = {**dict(parse_qsl(address.partition("?")[2])), **chosen(house, address, options)}.get("sandbox", "off")
    return "everybody" if choice == "off" else "owner" if choice == "best" and single_user else ""


UNSANDBOXED = {
    "owner": "jobs of the folder's owner run without a sandbox",
    "everybody": "all jobs run without a sandbox, as the platform's user",
}
"""The same in words."""


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
