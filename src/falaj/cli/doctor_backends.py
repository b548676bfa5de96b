"""What `falaj doctor` learns of the backends that the settings name. It creates no table, folder or key in them.

The one exception is the blob store: an object of a few bytes is written, read and deleted, since only that shows that
the bucket exists and that the credentials may use it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from falaj.core.context import HOUSE
from falaj.core.errors import Corrupt, FalajError
from falaj.core.event import new_id
from falaj.core.finding import Finding
from falaj.core.health import probe
from falaj.core.online import tenant_address
from falaj.core.ports import Blobs, CanJoin, CanProbe, CanRetire, Standing
from falaj.core.settings import Settings
from falaj.plugins import plugin

GOOD, WARN, BAD = "ok", "look", "FIX"
NEW = "falaj up creates it"
ROOT_KEY = "falaj"


def examine_backends(settings: Settings) -> Iterator[Finding]:
    """Store, blobs and keys."""
    standing = read_standing(settings)
    if isinstance(standing, Finding):
        yield standing
        is_new = standing.state != BAD
    else:
        yield _schema(standing)
        is_new = standing.schema == 0
    yield _examine("blobs", lambda: examine_blobs(settings))
    yield _examine("keys", lambda: examine_keys(settings, is_new))
    if settings.online.startswith("redis"):
        yield _examine("online", lambda: examine_online(settings))


def is_current(findings: list[Finding]) -> bool:
    """Whether a platform of this version stands there, so that opening it changes nothing."""
    states = {finding.check: (finding.state, finding.found) for finding in findings}
    return all(state == GOOD for name, (state, _) in states.items() if name in ("store", "keys")) and "store" in states


def read_standing(settings: Settings) -> Standing | Finding:
    """How far the store's schema is, or why that cannot be read."""
    url = settings.at(settings.store)
    if url.startswith("sqlite:") and not Path(url.partition(":")[2].removeprefix("//")).exists():
        return Finding("store", WARN, "there is no platform in this folder yet", NEW)
    try:
        with contextlib.closing(plugin("store", url.partition(":")[0])(url, {"settle": False})) as store:
            if isinstance(store, CanJoin):
                return store.standing(time.time())
    except FalajError as error:
        return Finding("store", BAD, error.message, error.hint or "check the setting `store`")
    return Finding("store", GOOD, "answers")


def _schema(standing: Standing) -> Finding:
    if standing.schema == 0:
        return Finding("store", WARN, "it answers and is empty: there is no platform in it yet", NEW)
    if standing.oldest > standing.knows:
        return Finding("store", BAD, "a newer version of falaj made its schema", "upgrade this program")
    if standing.schema < standing.knows:
        return Finding("store", WARN, "an older version of falaj made its schema", "falaj upgrade check; then falaj up")
    return Finding("store", GOOD, "answers")


def examine_blobs(settings: Settings) -> Finding:
    """Write, read and delete an object in the store of the platform's own zone."""
    url = settings.at(settings.blobs)
    if url.startswith("dir:") and not (folder := Path(url.partition(":")[2].partition("?")[0]).expanduser()).is_dir():
        parent = next(path for path in folder.parents if path.exists())
        if not os.access(parent, os.W_OK):
            return Finding("blobs", BAD, f"{folder} does not exist, and {parent} is not writable", f"mkdir {folder}")
        return Finding("blobs", WARN, f"{folder} does not exist yet", NEW)
    with contextlib.closing(plugin("blobs", url.partition(":")[0])(url, {})) as store:
        if isinstance(store, CanProbe):
            store.probe()  # which names a missing bucket: some stores would create it on the first write
        write_read_delete(store)
    return Finding("blobs", GOOD, "an object was written, read and deleted")


def write_read_delete(store: Blobs) -> None:
    """Raise what keeps this process from using the store."""
    key, written = f"doctor-{new_id()}", new_id().encode()
    try:
        store.put(key, [written])
        if b"".join(store.open(key)) != written:
            raise Corrupt(
                "the blob store gave other bytes than were written", "check what stands before it, and the disk"
            )
    finally:
        store.delete(key)


def examine_keys(settings: Settings, is_new: bool) -> Finding:
    """Whether the root keys can be reached; of a platform that stands already they must exist."""
    url = settings.at(settings.secrets)
    shared = "replicas of one platform need the same root keys: share the folder, or use vault: or pkcs11:"
    if url.startswith("file:") and not (folder := Path(url.partition(":")[2].partition("?")[0])).is_dir():
        if is_new:
            return Finding("keys", WARN, f"{folder} does not exist yet", NEW)
        return Finding("keys", BAD, f"the store holds a platform whose root keys are not in {folder}", shared)
    with contextlib.closing(plugin("secrets", url.partition(":")[0])(url, {})) as provider:
        if isinstance(provider, CanRetire) and provider.newest(ROOT_KEY) == 0 and not is_new:
            return Finding("keys", BAD, "the store holds a platform whose root keys are elsewhere", shared)
    return Finding("keys", GOOD, "answers")


def examine_online(settings: Settings) -> Finding:
    """Whether the Redis of online features answers and lets this process in; nothing is written."""
    address = tenant_address(settings.at(settings.online), HOUSE)
    with contextlib.closing(plugin("online", address.partition(":")[0])(address, {})) as store:
        probe(store)
    return Finding("online", GOOD, "answers")


def _examine(name: str, examine: Callable[[], Any]) -> Finding:
    try:
        finding: Finding = examine()
    except FalajError as error:
        return Finding(name, BAD, error.message, error.hint or f"check the setting `{_SETTING.get(name, name)}`")
    return finding


_SETTING = {"keys": "secrets"}
