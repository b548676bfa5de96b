"""A service opened for reading: in microseconds where the online store is at hand, else one call to the platform.

The right to read, and the versions, are asked for anew every minute; a sample of what was read is told with it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from falaj.asof.encrypted_online_store import EncryptedOnlineStore
from falaj.asof.records import STATUS_NAMES, ServicePlan
from falaj.asof.service_reader import ServiceAnswer, ServiceReader
from falaj.asof.space_keys import KeyTexts, make_key_finder
from falaj.core.client_command import Client
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.features.function_sandboxes import service_functions
from falaj.features.records import FeatureValues, OnlineKeys, ServiceAccess
from falaj.features.serving_skew import ReadSampler, pack_reads

_NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class LiveReader:
    """`reader.read({"customer_id": ["c1", "c2"]})` gives values and statuses by name."""

    def __init__(self, client: Client, service: Ref, model: Ref | None = None) -> None:
        if model is not None and not service.pinned:
            # What it was trained on; where that is another service, opening says so.
            service = next(
                (bound_service for bound_service in client.features.bound(model) if bound_service.bare == service.bare),
                service,
            )
        self._client, self._service, self._model = client, service, model
        self._online_store = client.online()
        self._valid_until = 0.0
        self._sampler: ReadSampler | None = None
        self._keys: KeyTexts | None = None
        self._renew_access(time.time())

    plan: ServicePlan
    """What is read, at which versions."""

    def read(
        self, keys: Mapping[str, Sequence[Any]], request: Mapping[str, Sequence[Any]] | None = None
    ) -> ServiceAnswer:
        """The newest values of these keys, in the order of the keys, with a status for each."""
        now_s = time.time()
        if now_s > self._valid_until:
            self._renew_access(now_s)
        at_us = round(now_s * 1e6)
        answer = self._reader.read(keys, request, at_us) if self._reader else self._read_remotely(keys, request)
        if self._sampler is not None and self._sampler.chosen():
            self._sampler.take(keys, request, at_us, answer)
        return answer

    def close(self) -> None:
        """Tell what was sampled; the platform's connection belongs to whoever opened it."""
        self._report_samples()

    def __enter__(self) -> "LiveReader":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _renew_access(self, now_s: float) -> None:
        self._report_samples()
        access: ServiceAccess = self._client.features.open(self._service, self._model)
        # Rows of sealed views are opened by the platform alone.
        store = None if any(view.sealed for view in access.plan.views) else self._online_store
        keys = self._fetch_space_keys() if store is not None and not isinstance(store, EncryptedOnlineStore) else None
        if self._valid_until == 0.0 or access.plan != self.plan or keys != self._keys:
            self.plan, self._keys, self._reader = access.plan, keys, None
            if store is not None:
                readable_store = store if keys is None else EncryptedOnlineStore(store, make_key_finder(keys))
                self._reader = ServiceReader(
                    access.plan, readable_store, functions=service_functions(self._client, access.plan)
                )
        if access.sample and self._sampler is None:
            self._sampler = ReadSampler(access.sample)
        # Half of what it is good for, so that clocks that differ a little do no harm.
        self._valid_until = now_s + max(1.0, (access.until - now_s) / 2)

    def _fetch_space_keys(self) -> KeyTexts:
        """The keys of the spaces in the plan, for a store that is read beside the platform."""
        answer: OnlineKeys = self._client.features.unlock(self._service, self._model)
        return answer.spaces

    def _report_samples(self) -> None:
        reads = self._sampler.drain() if self._sampler is not None else []
        if reads:
            # Samples are a courtesy: whoever cannot tell them any more reads, or stops reading, all the same.
            with suppress(FalajError):
                self._client.features.sample(Ref.parse(self.plan.ref), pack_reads(reads))

    def _read_remotely(
        self, keys: Mapping[str, Sequence[Any]], request: Mapping[str, Sequence[Any]] | None
    ) -> ServiceAnswer:
        """Over the wire; what functions make is made here."""
        key_lists = {name: list(values) for name, values in keys.items()}
        request_lists = {name: list(values) for name, values in (request or {}).items()} or None
        response: FeatureValues = self._client.features.read(
            Ref.parse(self.plan.ref), key_lists, request_lists, self._model
        )
        types = {item.name: item.type for item in self.plan.outputs}
        columns = {
            name: [_from_json_value(item, types[name]) for item in values] for name, values in response.columns.items()
        }
        codes = {name: [STATUS_NAMES.index(item) for item in values] for name, values in response.statuses.items()}
        return ServiceAnswer.of(columns, codes)


def _from_json_value(value: Any, kind: str) -> Any:
    """What JSON said in its own way, as it is."""
    if isinstance(value, list):
        return [_from_json_value(item, kind[5:-1]) for item in value]
    if isinstance(value, str) and kind in ("float32", "float64"):
        return _NON_FINITE[value]
    return bytes.fromhex(value) if kind == "bytes" and isinstance(value, str) else value
