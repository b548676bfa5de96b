"""The engine: requests in, answers out, whatever protocol they came by, and what it tells of its models.

Everything here is called on the thread of one event loop, and calls back on it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.model_manifest import TensorSpec
from falaj.infer.batcher import BatchRun
from falaj.infer.model_repository import ModelRepository
from falaj.infer.model_session import ModelSession
from falaj.infer.model_statistics import render_exposition
from falaj.infer.model_table import FinishedCallback, ModelEntry, ModelTable
from falaj.infer.records import LoadRuntime, ModelConfig, ServerConfig
from falaj.infer.request_log import RequestLog
from falaj.infer.request_queue import ResponseCallback
from falaj.oip.tensors import InferenceRequest

TICK_INTERVAL_S = 0.25


class InferenceEngine:
    """The models of a server, and whoever asks them."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        load: LoadRuntime | None = None,
        *,
        on_hung: Callable[[ModelSession], Any] | None = None,
    ) -> None:
        self.settings = config or ServerConfig()
        self.draining = self.closed = False
        self.beat = time.monotonic()
        """When the loop last had time for us."""
        self._model_table = ModelTable(load, self.settings.memory_bytes)
        self._routes = self._model_table.routes
        self._repository = ModelRepository(self.settings.repository) if self.settings.repository else None
        self._request_log = RequestLog(self.settings.journal) if self.settings.journal is not None else None
        self._on_hung = on_hung
        self._loop = asyncio.get_running_loop()
        self._tick_timer = self._loop.call_later(TICK_INTERVAL_S, self._run_tick)

    # ---- requests

    def submit(self, request: InferenceRequest, on_done: ResponseCallback) -> Callable[[], None] | None:
        """Run it; `on_done` is called once, on the loop, with the answer or what went wrong. What is given back ends it
        when nobody wants it any more."""
        versions = self._routes.get(request.model)
        entry = versions.get(request.version) if versions is not None else None
        if entry is None:
            on_done(self._missing_model_error(request))
            return None
        if self._request_log is not None and self._request_log.wants():
            on_done = self._request_log.noting(request, on_done)
        session = entry.session
        if session is None:
            return self._model_table.hold(entry, request, on_done)
        return session.submit(request, on_done)

    def joining(self, model: str, version: str) -> ModelSession | None:
        """The session that takes requests which came as one as one; None where each is looked at by itself."""
        versions = self._routes.get(model)
        entry = versions.get(version) if versions is not None else None
        session = entry.session if entry is not None else None
        return session if session is not None and session.joins > 1 else None

    def sample(self, request_count: int) -> list[int]:
        """Which of so many requests the journal wants, by number."""
        request_log = self._request_log
        return [position for position in range(request_count) if request_log.wants()] if request_log is not None else []

    def noting(self, request: InferenceRequest) -> ResponseCallback:
        """What writes down one of those with its answer."""
        return self._request_log.noting(request, _ignore_result) if self._request_log is not None else _ignore_result

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether a model can be asked; without a name, whether all can."""
        if self.draining:
            return False
        if not model:
            return all(entry.healthy for entry in self._model_table.entries())
        entry = self._routes.get(model, {}).get(version)
        return entry is not None and entry.healthy

    def names(self) -> tuple[tuple[str, str], ...]:
        """Names and versions of all models, in order."""
        return tuple(_entry_name(entry) for entry in self._model_table.entries())

    def ran(self, model: str, version: str) -> BatchRun | None:
        """The run of a model whose answers are being handed on now."""
        entry = self._routes.get(model, {}).get(version)
        return entry.session.ran if entry is not None and entry.session is not None else None

    def sessions(self) -> list[ModelSession]:
        """Those in memory that can be asked."""
        return [entry.session for entry in self._model_table.entries() if entry.session is not None]

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return any(session.batcher.busy for session in (*self.sessions(), *self._model_table.retiring))

    # ---- what it says of itself

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """What the protocol tells of a model."""
        session = self._require_session(model, version)
        return {
            "name": model,
            "versions": [item for item in self._routes[model] if item],
            "platform": session.runtime.platform,
            "inputs": [_describe_tensor(item) for item in session.shown_inputs],
            "outputs": [_describe_tensor(item) for item in session.shown_outputs],
        }

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        """Triton's ModelConfig, as far as clients read it."""
        session = self._require_session(model, version)
        skipped_dimensions = 1 if session.batches else 0
        triton_config: dict[str, Any] = {
            "name": model,
            "platform": session.runtime.platform,
            "backend": session.runtime.platform.partition("_")[0],
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": session.curve.most if session.batches else 0,
            "input": [_describe_config_tensor(tensor_spec, skipped_dimensions) for tensor_spec in session.shown_inputs],
            "output": [
                _describe_config_tensor(tensor_spec, skipped_dimensions) for tensor_spec in session.shown_outputs
            ],
        }
        if session.batches:
            delay_us = int(session.config.delay_ms * 1000)
            triton_config["dynamic_batching"] = {"preferred_batch_size": [], "max_queue_delay_microseconds": delay_us}
        if session.sheet.stateful:
            triton_config["sequence_batching"] = {"max_sequence_idle_microseconds": int(session.config.idle_s * 1e6)}
        return triton_config

    def statistics(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Triton's statistics extension."""
        entries = [self._model_table.find(model, version)] if model else self._model_table.entries()
        return {"model_stats": [entry.statistics.triton(*_entry_name(entry)) for entry in entries]}

    def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """The repository: every model that is here or could be loaded; or only those that can be asked."""
        rows = [_index_row(*_entry_name(item), item.healthy) for item in self._model_table.entries()]
        served = {_entry_name(item) for item in self._model_table.entries()}
        stored_models = self._repository.all() if self._repository is not None else []
        rows += [_index_row(*item, False, "unloaded") for item in stored_models if item not in served]
        return [item for item in rows if item["state"] == "READY" or not only_ready]

    def metrics(self) -> bytes:
        """Counts and histograms as Prometheus reads them."""
        entries = self._model_table.entries()
        return render_exposition((*_entry_name(entry), entry.statistics, _queued_count(entry)) for entry in entries)

    # ---- models come and go

    def load(self, name: str, parameters: Mapping[str, Any], on_finished: FinishedCallback) -> None:
        """Load the newest version of a model in the repository; older ones go once it can be asked."""
        try:
            config = self._require_repository().find(name, parameters)
        except FalajError as error:
            on_finished(error)
            return

        def on_placed(error: FalajError | None) -> None:
            on_finished(error)
            for version in [
                old_version
                for old_version in self._routes.get(name, {})
                if old_version and old_version != config.version
            ]:
                if error is None:
                    self._model_table.remove(name, version, _ignore_result)

        self._model_table.place(config, on_placed)

    def unload(self, name: str, parameters: Mapping[str, Any], on_finished: FinishedCallback) -> None:
        """Take all versions of a model out of memory."""
        del parameters  # `unload_dependents` is about models of an ensemble; ours have their own
        try:
            self._require_repository()
        except FalajError as error:
            on_finished(error)
            return
        versions = [routed_version for routed_version in self._routes.get(name, {}) if routed_version]
        for version in versions[:-1]:
            self._model_table.remove(name, version, _ignore_result)
        self._model_table.remove(name, versions[-1] if versions else "", on_finished)

    async def placed(self, config: ModelConfig) -> None:
        """Load and warm this version, and let it be asked instead of the one that has its name and version."""
        await _wait_for_finish(partial(self._model_table.place, config))

    async def removed(self, model: str, version: str = "") -> None:
        """Take one version out of memory."""
        await _wait_for_finish(partial(self._model_table.remove, model, version))

    def replan(self, plan: Mapping[str, Any], keys: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Which features models that are asked by keys read from now on, and the keys of their rows."""
        for entry in self._model_table.entries():
            replan_runtime = getattr(entry.session.runtime, "replan", None) if entry.session is not None else None
            if replan_runtime is not None:
                replan_runtime(plan, keys)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Answer what is here, then let go of everything; what still waits then is told so."""
        self.draining = True
        close_until = time.monotonic() + timeout_s
        while self.busy and time.monotonic() < close_until:  # noqa: ASYNC110 - nobody has to count for it
            await asyncio.sleep(0.005)
        self._tick_timer.cancel()
        self.closed = True
        self._model_table.close()
        if self._request_log is not None:
            self._request_log.close()

    def _require_repository(self) -> ModelRepository:
        if self._repository is None:
            raise Invalid(
                "callers cannot load or unload models of this server", "it was started without a folder of models"
            )
        return self._repository

    # ---- what runs too long

    def _run_tick(self) -> None:
        self._tick_timer = self._loop.call_later(TICK_INTERVAL_S, self._run_tick)
        now = self.beat = time.monotonic()
        for entry in self._model_table.entries():
            self._model_table.expire(entry, now)
            if entry.session is not None:
                entry.session.reap(now)
                self._check_session(entry.session, now, entry)
        for session in tuple(self._model_table.retiring):
            self._check_session(session, now)

    def _check_session(self, session: ModelSession, now: float, entry: ModelEntry | None = None) -> None:
        """Whether it hangs, and what then."""
        limit_s, isolated = session.config.timeout_s, session.runtime.isolated
        # What runs in a process of its own keeps to the time itself, and then its neighbours can be run without it.
        stuck_requests = session.batcher.stuck(now - limit_s - (min(1.0, limit_s) if isolated else 0.0))
        if not stuck_requests:
            return
        error = Unavailable(f"the model did not answer within {limit_s:g} s", "its runtime is started again")
        session.batcher.fail(stuck_requests, error)
        if isolated:
            self._model_table.restart(entry, session)
        elif session.healthy:
            session.healthy = False
            session.batcher.fail_all(error)
            if self._on_hung is not None:
                self._on_hung(session)

    # ---- small things

    def _require_session(self, model: str, version: str) -> ModelSession:
        session = self._model_table.find(model, version).seen
        if session is None:
            raise Unavailable(f"{model[:100]} is being loaded", "ask again soon")
        return session

    def _missing_model_error(self, request: InferenceRequest) -> FalajError:
        try:
            self._model_table.find(request.model, request.version)
        except NotFound as error:
            return error
        return NotFound("there is no such model", "look at the index of the server")


def _ignore_result(_: object) -> None:
    """Whoever began it does not wait for it."""


def _entry_name(entry: ModelEntry) -> tuple[str, str]:
    return entry.config.name, entry.config.version


def _index_row(name: str, version: str, is_ready: bool, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "state": "READY" if is_ready else "UNAVAILABLE", "reason": reason}


def _queued_count(entry: ModelEntry) -> int:
    return len(entry.held) + (entry.session.batcher.waiting if entry.session is not None else 0)


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _describe_config_tensor(spec: TensorSpec, skipped_dimensions: int) -> Mapping[str, Any]:
    type_name = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{type_name}", "dims": list(spec.shape[skipped_dimensions:])}


async def _wait_for_finish(start_work: Callable[[FinishedCallback], Any]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_finished(error: FalajError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    start_work(on_finished)
    await future
