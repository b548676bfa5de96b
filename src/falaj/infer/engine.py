"""The engine: requests in, answers out, whatever protocol they came by, and what it tells of its models.

Everything here is called on the thread of one event loop, and calls back on it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.sheet import TensorSpec
from falaj.infer.batcher import Ran
from falaj.infer.journal import RequestLog
from falaj.infer.models import Entry, Finished, Models
from falaj.infer.queue import Done
from falaj.infer.records import Config, Load, ModelConfig
from falaj.infer.repository import Repository
from falaj.infer.session import Session
from falaj.infer.statistics import exposition
from falaj.oip.tensors import Ask

TICK_S = 0.25


class Engine:
    """The models of a server, and whoever asks them."""

    def __init__(
        self, config: Config | None = None, load: Load | None = None, *, on_hung: Callable[[Session], Any] | None = None
    ) -> None:
        self.settings = config or Config()
        self.draining = self.closed = False
        self.beat = time.monotonic()
        """When the loop last had time for us."""
        self._models = Models(load, self.settings.memory_bytes)
        self._routes = self._models.routes
        self._repository = Repository(self.settings.repository) if self.settings.repository else None
        self._log = RequestLog(self.settings.journal) if self.settings.journal is not None else None
        self._on_hung = on_hung
        self._loop = asyncio.get_running_loop()
        self._ticking = self._loop.call_later(TICK_S, self._tick)

    # ---- requests

    def submit(self, ask: Ask, done: Done) -> Callable[[], None] | None:
        """Run it; `done` is called once, on the loop, with the answer or what went wrong. What is given back ends it
        when nobody wants it any more."""
        versions = self._routes.get(ask.model)
        entry = versions.get(ask.version) if versions is not None else None
        if entry is None:
            done(self._missing(ask))
            return None
        if self._log is not None and self._log.wants():
            done = self._log.noting(ask, done)
        session = entry.session
        if session is None:
            return self._models.hold(entry, ask, done)
        return session.submit(ask, done)

    def joining(self, model: str, version: str) -> Session | None:
        """The session that takes requests which came as one as one; None where each is looked at by itself."""
        versions = self._routes.get(model)
        entry = versions.get(version) if versions is not None else None
        session = entry.session if entry is not None else None
        return session if session is not None and session.joins > 1 else None

    def sample(self, num: int) -> list[int]:
        """Which of so many requests the journal wants, by number."""
        log = self._log
        return [at for at in range(num) if log.wants()] if log is not None else []

    def noting(self, ask: Ask) -> Done:
        """What writes down one of those with its answer."""
        return self._log.noting(ask, _ignore) if self._log is not None else _ignore

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether a model can be asked; without a name, whether all can."""
        if self.draining:
            return False
        if not model:
            return all(entry.healthy for entry in self._models.entries())
        entry = self._routes.get(model, {}).get(version)
        return entry is not None and entry.healthy

    def names(self) -> tuple[tuple[str, str], ...]:
        """Names and versions of all models, in order."""
        return tuple(_called(entry) for entry in self._models.entries())

    def ran(self, model: str, version: str) -> Ran | None:
        """The run of a model whose answers are being handed on now."""
        entry = self._routes.get(model, {}).get(version)
        return entry.session.ran if entry is not None and entry.session is not None else None

    def sessions(self) -> list[Session]:
        """Those in memory that can be asked."""
        return [entry.session for entry in self._models.entries() if entry.session is not None]

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return any(one.batcher.busy for one in (*self.sessions(), *self._models.retiring))

    # ---- what it says of itself

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """What the protocol tells of a model."""
        session = self._seen(model, version)
        return {
            "name": model,
            "versions": [one for one in self._routes[model] if one],
            "platform": session.runtime.platform,
            "inputs": [_tensor(one) for one in session.shown_inputs],
            "outputs": [_tensor(one) for one in session.shown_outputs],
        }

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        """Triton's ModelConfig, as far as clients read it."""
        session = self._seen(model, version)
        skip = 1 if session.batches else 0
        found: dict[str, Any] = {
            "name": model,
            "platform": session.runtime.platform,
            "backend": session.runtime.platform.partition("_")[0],
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": session.curve.most if session.batches else 0,
            "input": [_configured(one, skip) for one in session.shown_inputs],
            "output": [_configured(one, skip) for one in session.shown_outputs],
        }
        if session.batches:
            delay_us = int(session.config.delay_ms * 1000)
            found["dynamic_batching"] = {"preferred_batch_size": [], "max_queue_delay_microseconds": delay_us}
        if session.sheet.stateful:
            found["sequence_batching"] = {"max_sequence_idle_microseconds": int(session.config.idle_s * 1e6)}
        return found

    def statistics(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Triton's statistics extension."""
        entries = [self._models.find(model, version)] if model else self._models.entries()
        return {"model_stats": [one.statistics.triton(*_called(one)) for one in entries]}

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """The repository: every model that is here or could be loaded; or only those that can be asked."""
        found = [_row(*_called(one), one.healthy) for one in self._models.entries()]
        known = {_called(one) for one in self._models.entries()}
        stored = self._repository.all() if self._repository is not None else []
        found += [_row(*one, False, "unloaded") for one in stored if one not in known]
        return [one for one in found if one["state"] == "READY" or not ready]

    def metrics(self) -> bytes:
        """Counts and histograms as Prometheus reads them."""
        entries = self._models.entries()
        return exposition((*_called(one), one.statistics, _waiting(one)) for one in entries)

    # ---- models come and go

    def load(self, name: str, parameters: Mapping[str, Any], done: Finished) -> None:
        """Load the newest version of a model in the repository; older ones go once it can be asked."""
        try:
            config = self._shelf().find(name, parameters)
        except FalajError as error:
            done(error)
            return

        def placed(error: FalajError | None) -> None:
            done(error)
            for version in [one for one in self._routes.get(name, {}) if one and one != config.version]:
                if error is None:
                    self._models.remove(name, version, _ignore)

        self._models.place(config, placed)

    def unload(self, name: str, parameters: Mapping[str, Any], done: Finished) -> None:
        """Take all versions of a model out of memory."""
        del parameters  # `unload_dependents` is about models of an ensemble; ours have their own
        try:
            self._shelf()
        except FalajError as error:
            done(error)
            return
        versions = [one for one in self._routes.get(name, {}) if one]
        for version in versions[:-1]:
            self._models.remove(name, version, _ignore)
        self._models.remove(name, versions[-1] if versions else "", done)

    async def placed(self, config: ModelConfig) -> None:
        """Load and warm this version, and let it be asked instead of the one that has its name and version."""
        await _waited(partial(self._models.place, config))

    async def removed(self, model: str, version: str = "") -> None:
        """Take one version out of memory."""
        await _waited(partial(self._models.remove, model, version))

    def replan(self, plan: Mapping[str, Any], keys: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Which features models that are asked by keys read from now on, and the keys of their rows."""
        for entry in self._models.entries():
            again = getattr(entry.session.runtime, "replan", None) if entry.session is not None else None
            if again is not None:
                again(plan, keys)

    async def close(self, within_s: float = 5.0) -> None:
        """Answer what is here, then let go of everything; what still waits then is told so."""
        self.draining = True
        until = time.monotonic() + within_s
        while self.busy and time.monotonic() < until:  # noqa: ASYNC110 - nobody has to count for it
            await asyncio.sleep(0.005)
        self._ticking.cancel()
        self.closed = True
        self._models.close()
        if self._log is not None:
            self._log.close()

    def _shelf(self) -> Repository:
        if self._repository is None:
            raise Invalid(
                "callers cannot load or unload models of this server", "it was started without a folder of models"
            )
        return self._repository

    # ---- what runs too long

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        now = self.beat = time.monotonic()
        for entry in self._models.entries():
            self._models.expire(entry, now)
            if entry.session is not None:
                entry.session.reap(now)
                self._look(entry.session, now, entry)
        for session in tuple(self._models.retiring):
            self._look(session, now)

    def _look(self, session: Session, now: float, entry: Entry | None = None) -> None:
        """Whether it hangs, and what then."""
        limit_s, isolated = session.config.timeout_s, session.runtime.isolated
        # What runs in a process of its own keeps to the time itself, and then its neighbours can be run without it.
        stuck = session.batcher.stuck(now - limit_s - (min(1.0, limit_s) if isolated else 0.0))
        if not stuck:
            return
        error = Unavailable(f"the model did not answer within {limit_s:g} s", "its runtime is started again")
        session.batcher.fail(stuck, error)
        if isolated:
            self._models.restart(entry, session)
        elif session.healthy:
            session.healthy = False
            session.batcher.fail_all(error)
            if self._on_hung is not None:
                self._on_hung(session)

    # ---- small things

    def _seen(self, model: str, version: str) -> Session:
        session = self._models.find(model, version).seen
        if session is None:
            raise Unavailable(f"{model[:100]} is being loaded", "ask again soon")
        return session

    def _missing(self, ask: Ask) -> FalajError:
        try:
            self._models.find(ask.model, ask.version)
        except NotFound as error:
            return error
        return NotFound("there is no such model", "look at the index of the server")


def _ignore(_: object) -> None:
    """Whoever began it does not wait for it."""


def _called(entry: Entry) -> tuple[str, str]:
    return entry.config.name, entry.config.version


def _row(name: str, version: str, fit: bool, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "state": "READY" if fit else "UNAVAILABLE", "reason": reason}


def _waiting(entry: Entry) -> int:
    return len(entry.held) + (entry.session.batcher.waiting if entry.session is not None else 0)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _configured(spec: TensorSpec, skip: int) -> Mapping[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape[skip:])}


async def _waited(begin: Callable[[Finished], Any]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: FalajError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    begin(done)
    await future
