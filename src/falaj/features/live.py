"""A service opened for reading: in microseconds where the online store is at hand, else one call to the platform.

The right to read, and the versions, are asked for anew every minute; a sample of what was read is told with it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from falaj.asof.encrypted_online import EncryptedOnline
from falaj.asof.reading import Answer, Reader
from falaj.asof.records import STATUSES, ServicePlan
from falaj.asof.space_keys import KeyTexts, finder_of
from falaj.core.errand import Here
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.features.functions import service_functions
from falaj.features.records import OnlineKeys, Opening, Values
from falaj.features.skew import Sampler, pack_reads

_NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class LiveReader:
    """`reader.read({"customer_id": ["c1", "c2"]})` gives values and statuses by name."""

    def __init__(self, here: Here, service: Ref, model: Ref | None = None) -> None:
        if model is not None and not service.pinned:
            # What it was trained on; where that is another service, opening says so.
            service = next((one for one in here.features.bound(model) if one.bare == service.bare), service)
        self._here, self._service, self._model = here, service, model
        self._online = here.online()
        self._until = 0.0
        self._sampler: Sampler | None = None
        self._keys: KeyTexts | None = None
        self._renew(time.time())

    plan: ServicePlan
    """What is read, at which versions."""

    def read(self, keys: Mapping[str, Sequence[Any]], request: Mapping[str, Sequence[Any]] | None = None) -> Answer:
        """The newest values of these keys, in the order of the keys, with a status for each."""
        now = time.time()
        if now > self._until:
            self._renew(now)
        at = round(now * 1e6)
        answer = self._reader.read(keys, request, at) if self._reader else self._asked(keys, request)
        if self._sampler is not None and self._sampler.chosen():
            self._sampler.take(keys, request, at, answer)
        return answer

    def close(self) -> None:
        """Tell what was sampled; the platform's connection belongs to whoever opened it."""
        self._tell()

    def __enter__(self) -> "LiveReader":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _renew(self, now: float) -> None:
        self._tell()
        opened: Opening = self._here.features.open(self._service, self._model)
        # Rows of sealed views are opened by the platform alone.
        store = None if any(view.sealed for view in opened.plan.views) else self._online
        keys = self._unlock() if store is not None and not isinstance(store, EncryptedOnline) else None
        if self._until == 0.0 or opened.plan != self.plan or keys != self._keys:
            self.plan, self._keys, self._reader = opened.plan, keys, None
            if store is not None:
                readable = store if keys is None else EncryptedOnline(store, finder_of(keys))
                self._reader = Reader(opened.plan, readable, functions=service_functions(self._here, opened.plan))
        if opened.sample and self._sampler is None:
            self._sampler = Sampler(opened.sample)
        # Half of what it is good for, so that clocks that differ a little do no harm.
        self._until = now + max(1.0, (opened.until - now) / 2)

    def _unlock(self) -> KeyTexts:
        """The keys of the spaces in the plan, for a store that is read beside the platform."""
        answer: OnlineKeys = self._here.features.unlock(self._service, self._model)
        return answer.spaces

    def _tell(self) -> None:
        reads = self._sampler.drain() if self._sampler is not None else []
        if reads:
            # Samples are a courtesy: whoever cannot tell them any more reads, or stops reading, all the same.
            with suppress(FalajError):
                self._here.features.sample(Ref.parse(self.plan.ref), pack_reads(reads))

    def _asked(self, keys: Mapping[str, Sequence[Any]], request: Mapping[str, Sequence[Any]] | None) -> Answer:
        """Over the wire; what functions make is made here."""
        plain = {name: list(values) for name, values in keys.items()}
        asked = {name: list(values) for name, values in (request or {}).items()} or None
        found: Values = self._here.features.read(Ref.parse(self.plan.ref), plain, asked, self._model)
        kinds = {one.name: one.type for one in self.plan.outputs}
        columns = {name: [_value(one, kinds[name]) for one in values] for name, values in found.columns.items()}
        codes = {name: [STATUSES.index(one) for one in values] for name, values in found.statuses.items()}
        return Answer.of(columns, codes)


def _value(value: Any, kind: str) -> Any:
    """What JSON said in its own way, as it is."""
    if isinstance(value, list):
        return [_value(one, kind[5:-1]) for one in value]
    if isinstance(value, str) and kind in ("float32", "float64"):
        return _NON_FINITE[value]
    return bytes.fromhex(value) if kind == "bytes" and isinstance(value, str) else value
