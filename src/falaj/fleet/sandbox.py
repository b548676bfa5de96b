"""The sandbox of attempts on this machine: what its executor is told, and what it enforces, in words."""

import logging
from collections.abc import Mapping
from urllib.parse import parse_qsl

from falaj.core.execute import CanCage, Executor
from falaj.core.settings import Settings

_log = logging.getLogger(__name__)


def options_of(settings: Settings) -> dict[str, str]:
    """The choice, where the platform answers, and what no attempt may see."""
    urls = (settings.store, settings.blobs, settings.secrets, settings.online, settings.series)
    named = [settings.at(url).partition(":")[2].partition("?")[0] for url in urls]
    named += [f"{path}-wal" for path in named if path.endswith(".db")]
    hidden = [
        path
        for path in (settings.home, settings.cache, settings.tls.key, *named)
        if path.startswith(("/", "~")) and not path.startswith("//")
    ]
    platform = settings.url or f"{'https' if settings.tls.cert else 'http'}://{settings.listen}"
    known = {"sandbox": settings.sandbox, "platform": platform, "online": settings.at(settings.online)}
    return {**known, "hidden": ",".join(dict.fromkeys(hidden))}


def chosen(house: Mapping[str, str], address: str, options: Mapping[str, str]) -> dict[str, str]:
    """For one cluster: its own words come before the house's, but what the house requires no cluster lowers."""
    said = {*dict(parse_qsl(address.partition("?")[2])), *options}
    wanted = {name: value for name, value in house.items() if name not in said}
    return {**wanted, **options, **({"sandbox": "required"} if house["sandbox"] == "required" else {})}


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
