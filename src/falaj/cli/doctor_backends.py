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

from falaj.core.check_result import CheckResult
from falaj.core.context import SYSTEM_TENANT
from falaj.core.dependency_health import probe_backend
from falaj.core.errors import CorruptData, FalajError
from falaj.core.event import generate_id
from falaj.core.online_rows import build_tenant_address
from falaj.core.ports import ObjectStore, SchemaStatus, SupportsKeyRetirement, SupportsProbe, SupportsSchemaUpgrade
from falaj.core.settings import Settings
from falaj.plugins import load_plugin

STATE_OK, STATE_WARN, STATE_BAD = "ok", "look", "FIX"
NEW_HINT = "falaj up creates it"
ROOT_KEY_NAME = "falaj"


def examine_backends(settings: Settings) -> Iterator[CheckResult]:
    """Store, blobs and keys."""
    schema_status = read_schema_status(settings)
    if isinstance(schema_status, CheckResult):
        yield schema_status
        is_new = schema_status.state != STATE_BAD
    else:
        yield _check_schema(schema_status)
        is_new = schema_status.schema == 0
    yield _run_examination("blobs", lambda: examine_blobs(settings))
    yield _run_examination("keys", lambda: examine_keys(settings, is_new))
    if settings.online.startswith("redis"):
        yield _run_examination("online", lambda: examine_online(settings))


def is_current(check_results: list[CheckResult]) -> bool:
    """Whether a platform of this version stands there, so that opening it changes nothing."""
    states = {check_result.check: (check_result.state, check_result.found) for check_result in check_results}
    return (
        all(state == STATE_OK for check_name, (state, _) in states.items() if check_name in ("store", "keys"))
        and "store" in states
    )


def read_schema_status(settings: Settings) -> SchemaStatus | CheckResult:
    """How far the store's schema is, or why that cannot be read."""
    url = settings.at(settings.store)
    if url.startswith("sqlite:") and not Path(url.partition(":")[2].removeprefix("//")).exists():
        return CheckResult("store", STATE_WARN, "there is no platform in this folder yet", NEW_HINT)
    try:
        with contextlib.closing(load_plugin("store", url.partition(":")[0])(url, {"settle": False})) as store:
            if isinstance(store, SupportsSchemaUpgrade):
                return store.standing(time.time())
    except FalajError as error:
        return CheckResult("store", STATE_BAD, error.message, error.hint or "check the setting `store`")
    return CheckResult("store", STATE_OK, "answers")


def _check_schema(schema_status: SchemaStatus) -> CheckResult:
    if schema_status.schema == 0:
        return CheckResult("store", STATE_WARN, "it answers and is empty: there is no platform in it yet", NEW_HINT)
    if schema_status.oldest > schema_status.knows:
        return CheckResult("store", STATE_BAD, "a newer version of falaj made its schema", "upgrade this program")
    if schema_status.schema < schema_status.knows:
        return CheckResult(
            "store", STATE_WARN, "an older version of falaj made its schema", "falaj upgrade check; then falaj up"
        )
    return CheckResult("store", STATE_OK, "answers")


def examine_blobs(settings: Settings) -> CheckResult:
    """Write, read and delete an object in the store of the platform's own zone."""
    url = settings.at(settings.blobs)
    if url.startswith("dir:") and not (folder := Path(url.partition(":")[2].partition("?")[0]).expanduser()).is_dir():
        parent = next(path for path in folder.parents if path.exists())
        if not os.access(parent, os.W_OK):
            return CheckResult(
                "blobs", STATE_BAD, f"{folder} does not exist, and {parent} is not writable", f"mkdir {folder}"
            )
        return CheckResult("blobs", STATE_WARN, f"{folder} does not exist yet", NEW_HINT)
    with contextlib.closing(load_plugin("blobs", url.partition(":")[0])(url, {})) as store:
        if isinstance(store, SupportsProbe):
            store.probe()  # which names a missing bucket: some stores would create it on the first write
        write_read_delete(store)
    return CheckResult("blobs", STATE_OK, "an object was written, read and deleted")


def write_read_delete(store: ObjectStore) -> None:
    """Raise what keeps this process from using the store."""
    key, content = f"doctor-{generate_id()}", generate_id().encode()
    try:
        store.put(key, [content])
        if b"".join(store.open(key)) != content:
            raise CorruptData(
                "the blob store gave other bytes than were written", "check what stands before it, and the disk"
            )
    finally:
        store.delete(key)


def examine_keys(settings: Settings, is_new: bool) -> CheckResult:
    """Whether the root keys can be reached; of a platform that stands already they must exist."""
    url = settings.at(settings.secrets)
    shared_hint = "replicas of one platform need the same root keys: share the folder, or use vault: or pkcs11:"
    if url.startswith("file:") and not (folder := Path(url.partition(":")[2].partition("?")[0])).is_dir():
        if is_new:
            return CheckResult("keys", STATE_WARN, f"{folder} does not exist yet", NEW_HINT)
        return CheckResult(
            "keys", STATE_BAD, f"the store holds a platform whose root keys are not in {folder}", shared_hint
        )
    with contextlib.closing(load_plugin("secrets", url.partition(":")[0])(url, {})) as provider:
        if isinstance(provider, SupportsKeyRetirement) and provider.newest(ROOT_KEY_NAME) == 0 and not is_new:
            return CheckResult(
                "keys", STATE_BAD, "the store holds a platform whose root keys are elsewhere", shared_hint
            )
    return CheckResult("keys", STATE_OK, "answers")


def examine_online(settings: Settings) -> CheckResult:
    """Whether the Redis of online features answers and lets this process in; nothing is written."""
    address = build_tenant_address(settings.at(settings.online), SYSTEM_TENANT)
    with contextlib.closing(load_plugin("online", address.partition(":")[0])(address, {})) as store:
        probe_backend(store)
    return CheckResult("online", STATE_OK, "answers")


def _run_examination(name: str, examine: Callable[[], Any]) -> CheckResult:
    try:
        check_result: CheckResult = examine()
    except FalajError as error:
        return CheckResult(
            name, STATE_BAD, error.message, error.hint or f"check the setting `{_SETTING_BY_CHECK.get(name, name)}`"
        )
    return check_result


_SETTING_BY_CHECK = {"keys": "secrets"}
