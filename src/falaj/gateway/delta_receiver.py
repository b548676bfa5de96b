"""What replicas counted: checked, written down once a second for all of them, and only then acknowledged.

A replica whose model came without a profile is handed the baseline of its revision, as soon as there is one.
"""

import asyncio
import base64
import binascii
import logging
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from falaj.core.errors import CorruptData, FalajError, Invalid
from falaj.core.ref import Ref
from falaj.drift.profiles import hash_profile, read_profile
from falaj.drift.records import DataProfile
from falaj.drift.tally import DataTally
from falaj.gateway.route_table import RoutedEndpoint
from falaj.gateway.upstream_connection import UpstreamConnection
from falaj.serve.drift_counts import DriftCountRow, DriftCounts
from falaj.serve.records import EndpointRoute
from falaj.serve.sealed_blocks import RowOwner

MAX_DELTA_BYTES, MAX_PENDING_BYTES = 24 << 20, 64 << 20
"""Of one delta, as text; of all that wait to be written. What comes then is not acknowledged, so it comes again."""
MAX_CACHED_PROFILES = 256
_PROCESS_ID_PATTERN, _DIGEST_PATTERN = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)
FindProfile = Callable[[str, Ref, int], bytes | None]
"""The profile of a revision of an endpoint of a tenant."""


class ReceivedDelta(NamedTuple):
    """A delta as it was told, by whom."""

    route: EndpointRoute
    link: UpstreamConnection
    said: Mapping[str, Any]


class DeltaReceiver:
    """One gateway's part in it. Called on the loop; reads and writes in threads."""

    def __init__(
        self, find_profile: FindProfile, sketches: DriftCounts, pool: Executor, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._find_profile, self._sketches, self._pool, self._loop = find_profile, sketches, pool, loop
        self._received: list[ReceivedDelta] = []
        self._received_bytes = 0
        self._profile_by_upstream: WeakKeyDictionary[UpstreamConnection, str] = WeakKeyDictionary()
        """Which profile each replica counts by."""
        self._parsed_profiles: dict[str, tuple[bytes, str, DataProfile]] = {}

    def greet(self, route: EndpointRoute, upstream: UpstreamConnection) -> None:
        """A replica was connected."""
        upstream.tell({"takes": True})
        self._profile_by_upstream[upstream] = str(upstream.client.about.get("profile", ""))
        self._pool.submit(self._offer_profile, route, upstream, self._profile_by_upstream[upstream])

    def renew(self, routes: Mapping[Any, RoutedEndpoint]) -> None:
        """Look whether replicas should count by another profile; every half minute."""
        for routed in routes.values():
            for upstreams in routed.pools.values():
                for upstream in upstreams:
                    if upstream in self._profile_by_upstream and upstream.client.ready:
                        self._pool.submit(
                            self._offer_profile, routed.route, upstream, self._profile_by_upstream[upstream]
                        )

    def heard(self, route: EndpointRoute, upstream: UpstreamConnection, control_message: Mapping[str, Any]) -> None:
        """A word of a replica; nothing is believed yet."""
        delta_fields = control_message.get("tally")
        size = len(str(delta_fields.get("data", ""))) if isinstance(delta_fields, dict) else 0
        if (
            isinstance(delta_fields, dict)
            and 0 < size <= MAX_DELTA_BYTES
            and self._received_bytes + size <= MAX_PENDING_BYTES
        ):
            self._received_bytes += size
            self._received.append(ReceivedDelta(route, upstream, delta_fields))

    def take(self) -> list[ReceivedDelta]:
        """What is to be written now."""
        received, self._received, self._received_bytes = self._received, [], 0
        return received

    def written(self, deltas: list[ReceivedDelta]) -> None:
        """In a thread: what is good is kept, then acknowledged; what never can be is refused, so that it goes away."""
        accepted: list[tuple[ReceivedDelta, RowOwner, DriftCountRow]] = []
        refused: list[ReceivedDelta] = []
        for delta in deltas:
            try:
                row = self._check_delta(delta)
            except (CorruptData, Invalid) as error:
                _log.warning(
                    "what a replica counted is refused", extra={"why": error.message, **_describe_sender(delta)}
                )
                refused.append(delta)
                continue
            if row is not None:
                accepted.append((delta, RowOwner(delta.route.tenant, delta.route.ref, delta.route.zone), row))
        self._sketches.append_all([(owner, row) for _, owner, row in accepted])
        for delta, _, row in accepted:
            self._loop.call_soon_threadsafe(delta.link.tell, {"kept": [row.number]})
        for delta in refused:
            self._loop.call_soon_threadsafe(delta.link.tell, {"refused": [delta.said.get("n")]})

    def _check_delta(self, delta: ReceivedDelta) -> DriftCountRow | None:
        """A delta that can be kept; None while its profile is not known here."""
        delta_fields, replica_address = delta.said, delta.link.place
        process_id, number, profile = (delta_fields.get(name) for name in ("life", "n", "profile"))
        started_at, ended_at = delta_fields.get("at"), delta_fields.get("until")
        has_identity = (
            _matches_pattern(_PROCESS_ID_PATTERN, process_id)
            and _matches_pattern(_DIGEST_PATTERN, profile)
            and type(number) is int
            and 0 < number < 1 << 48
        )
        has_times = all(type(delta) in (int, float) and math.isfinite(delta) for delta in (started_at, ended_at))  # type: ignore[arg-type]
        if not has_identity or not has_times or not 0 <= started_at <= ended_at:  # type: ignore[operator]
            raise Invalid("a delta has no good number or moment", "this is a fault of the replica")
        profile_entry = self._get_profile(delta.route, replica_address.revision)
        if profile_entry is None:
            return None
        if profile_entry[0] != profile:
            raise Invalid("it was counted by a profile that is not the endpoint's", "the right one is on its way")
        try:
            data = base64.b64decode(delta_fields["data"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise CorruptData("a delta is no base64", "this is a fault of the replica") from error
        DataTally.from_bytes(data, profile_entry[1])
        return DriftCountRow(
            started_at,  # type: ignore[arg-type]
            ended_at,  # type: ignore[arg-type]
            replica_address.revision,
            f"{replica_address.name}.{process_id}",
            number,  # type: ignore[arg-type]
            profile,
            data,
        )

    def _get_profile(self, route: EndpointRoute, revision: int) -> tuple[str, DataProfile] | None:
        data = self._find_profile(route.tenant, route.ref, revision)
        if data is None:
            return None
        key = f"{route.tenant} {route.ref} {revision}"
        cached = self._parsed_profiles.get(key)
        if cached is None or cached[0] != data:
            if len(self._parsed_profiles) >= MAX_CACHED_PROFILES:
                self._parsed_profiles.clear()
            parsed = read_profile(data)
            cached = self._parsed_profiles[key] = (data, hash_profile(parsed), parsed)
        return cached[1:]

    def _offer_profile(self, route: EndpointRoute, upstream: UpstreamConnection, current_digest: str) -> None:
        """In a thread: the profile of a replica's revision, unless it has that one."""
        try:
            profile_entry = self._get_profile(route, upstream.place.revision)
        except FalajError as error:
            log_fields = {"endpoint": str(route.ref), "revision": upstream.place.revision, "why": error.message}
            _log.warning("a profile was not got", extra=log_fields)
            return
        if profile_entry is not None and profile_entry[0] != current_digest:
            data = self._find_profile(route.tenant, route.ref, upstream.place.revision) or b""
            self._loop.call_soon_threadsafe(self._send_profile, upstream, profile_entry[0], data.decode())

    def _send_profile(self, upstream: UpstreamConnection, profile_digest: str, text: str) -> None:
        if upstream.client.ready:
            upstream.tell({"profile": text, "digest": profile_digest})
            self._profile_by_upstream[upstream] = profile_digest


def _matches_pattern(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _describe_sender(delta: ReceivedDelta) -> dict[str, Any]:
    return {"endpoint": str(delta.route.ref), "replica": delta.link.place.name}
