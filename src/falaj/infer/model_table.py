"""Which models and versions a server has, and how they come and go without anybody noticing: a new one is loaded and
warmed first, then the pointer is swapped, then the old one answers what it has and goes. A load that fails changes
nothing. Where memory is bounded, those used least recently are put away, and come back when somebody asks for them.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.malloc_tuning import release_freed_memory
from falaj.core.model_manifest import ModelManifest
from falaj.infer.batcher import MODEL_ERRORS
from falaj.infer.folder_size import measure_folder_bytes
from falaj.infer.model_session import ModelSession
from falaj.infer.model_statistics import ModelStatistics
from falaj.infer.records import LoadRuntime, ModelConfig, ModelRuntime
from falaj.infer.request_queue import QueueFull, ResponseCallback, deadline_error
from falaj.infer.row_counting import read_model_profile
from falaj.oip.tensors import InferenceRequest

_log = logging.getLogger(__name__)
FinishedCallback = Callable[[FalajError | None], Any]
LOADER_THREADS = 4


class ColdStartRequest:
    """A request whose model is on its way into memory."""

    __slots__ = ("ask", "cancel", "done", "entry")

    def __init__(self, entry: "ModelEntry", request: InferenceRequest, on_done: ResponseCallback) -> None:
        self.entry, self.ask, self.done = entry, request, on_done
        self.cancel: Callable[[], None] | None = None

    def end(self) -> None:
        """Nobody wants it any more."""
        if self in self.entry.held:
            self.entry.held.remove(self)
        elif self.cancel is not None:
            self.cancel()


class ModelEntry:
    """One version that the server knows: in memory, or put away until somebody asks for it."""

    __slots__ = ("config", "held", "loading", "seen", "session", "statistics", "used")

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.session: ModelSession | None = None
        self.seen: ModelSession | None = None
        """The last one: what it was like is known also while it is not in memory."""
        self.statistics = ModelStatistics()
        self.held: list[ColdStartRequest] = []
        self.loading = False
        self.used = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether it can be asked."""
        return self.session is None or self.session.healthy

    @property
    def size_bytes(self) -> int:
        """What it takes of memory now."""
        return self.session.runtime.size_bytes if self.session is not None else 0

    def last_used(self) -> float:
        """When it was last asked, or loaded."""
        return max(self.used, self.statistics.last)


class ModelTable:
    """All of them. Called on the loop's thread, calls back on it; loading is done in threads."""

    def __init__(self, load: LoadRuntime | None, memory_bytes: int) -> None:
        self.routes: dict[str, dict[str, ModelEntry]] = {}
        """By name, then by version; under no version, the newest."""
        self.retiring: set[ModelSession] = set()
        self._load_runtime, self._memory_bytes, self._is_closed = load, memory_bytes, False
        self._loop = asyncio.get_running_loop()
        self._changes_by_model: dict[str, deque[Callable[[], Any]]] = {}
        self._loader_pool = ThreadPoolExecutor(LOADER_THREADS, thread_name_prefix="falaj-load")

    def entries(self) -> list[ModelEntry]:
        """Every version once, in order."""
        return [entry for versions in self.routes.values() for name, entry in versions.items() if name]

    def find(self, model: str, version: str) -> ModelEntry:
        """One of them, or NotFound."""
        versions = self.routes.get(model)
        if versions is None:
            raise NotFound(f"there is no model {model[:100]!r} here", "look at the index of the server")
        entry = versions.get(version)
        if entry is None:
            known_versions = ", ".join(name for name in versions if name)
            raise NotFound(f"{model[:100]} has no version {version[:40]!r} here", f"it has {known_versions}"[:300])
        return entry

    def place(self, config: ModelConfig, on_finished: FinishedCallback) -> None:
        """Load this version, warm it, and let it be asked; the one of the same name and version goes."""
        entry = ModelEntry(config)
        self._queue_change(
            config.name, partial(self._start_load, entry, partial(self._swap_session, entry, on_finished), on_finished)
        )

    def remove(self, model: str, version: str, on_finished: FinishedCallback) -> None:
        """Ask it no more; `on_finished` when what it had is answered and its memory is given back."""
        self._queue_change(model, partial(self._unload_version, model, version, on_finished))

    def hold(
        self, entry: ModelEntry, request: InferenceRequest, on_done: ResponseCallback
    ) -> Callable[[], None] | None:
        """The request waits until its model is back in memory."""
        if self._is_closed:
            on_done(Unavailable("the server ends", "ask another one"))
            return None
        if len(entry.held) >= entry.config.queue:
            on_done(QueueFull(f"{entry.config.queue} requests wait for the model already", "come again later"))
            return None
        held_request = ColdStartRequest(entry, request, on_done)
        entry.held.append(held_request)
        self._reload_entry(entry)
        return held_request.end

    def expire(self, entry: ModelEntry, now: float) -> None:
        """Tell those who held too long."""
        for held_request in [
            held_request
            for held_request in entry.held
            if held_request.ask.deadline and held_request.ask.deadline <= now
        ]:
            entry.held.remove(held_request)
            held_request.done(deadline_error())

    def restart(self, entry: ModelEntry | None, session: ModelSession) -> None:
        """End a runtime that hangs in a process of its own; those who wait are asked again of the next one. One that
        nobody reaches any more is only ended."""
        queued_requests = session.batcher.give_up()
        self.in_thread(session.close, lambda _: self.retiring.discard(session))
        if entry is None:
            session.batcher.fail(
                queued_requests, Unavailable("the model was unloaded while it hung", "ask the next version")
            )
            return
        entry.session = None
        entry.held += [ColdStartRequest(entry, queued.ask, queued.done) for queued in queued_requests]
        self._reload_entry(entry)

    def close(self) -> None:
        """Let go of all; what they did is still known."""
        self._is_closed = True
        server_ended = Unavailable("the server ends", "ask another one")
        for entry in self.entries():
            session, entry.session = entry.session, None
            self._fail_held(entry, server_ended)
            if session is not None:
                session.batcher.fail_all(server_ended)
                session.close()
        self._loader_pool.shutdown(wait=False, cancel_futures=True)

    def in_thread(self, work: Callable[[], Any], on_finished: Callable[[Any], Any]) -> None:
        """`on_finished` is called on the loop with what `work` gave in a thread."""

        def run_work() -> None:
            outcome = work()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(on_finished, outcome)

        self._loader_pool.submit(run_work)

    # ---- one change of a model after the other; of different ones, at the same time

    def _queue_change(self, name: str, work: Callable[[], Any]) -> None:
        pending_changes = self._changes_by_model.setdefault(name, deque())
        pending_changes.append(work)
        if len(pending_changes) == 1:
            work()

    def _start_next_change(self, name: str) -> None:
        pending_changes = self._changes_by_model[name]
        pending_changes.popleft()
        if pending_changes:
            pending_changes[0]()
        else:
            del self._changes_by_model[name]

    def _start_load(
        self, entry: ModelEntry, use_session: Callable[[ModelSession], Any], on_finished: FinishedCallback
    ) -> None:
        name = entry.config.name
        room_error = self._make_room(entry)
        if room_error is not None:
            on_finished(room_error)
            self._start_next_change(name)
            return

        def on_loaded(outcome: ModelSession | FalajError) -> None:
            if isinstance(outcome, FalajError):
                on_finished(outcome)
            else:
                use_session(outcome)
            self._start_next_change(name)

        self.in_thread(partial(self._load_session, entry), on_loaded)

    def _load_session(self, entry: ModelEntry) -> "ModelSession | FalajError":
        """In a thread: the session, warm, or why not."""
        config = entry.config
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(release_freed_memory)
            try:
                runtime, manifest = self._open_runtime(config)
                cleanup.callback(runtime.close)
                session = ModelSession(config, manifest, runtime, self._loop, entry.statistics)
                session.warm()
                _start_counting(session)
            except FalajError as error:
                return error
            except MODEL_ERRORS as error:
                description = f"{config.name} cannot be loaded: {type(error).__name__}: {error}"
                return Invalid(description[:500], "look at its files")
            cleanup.pop_all()
        return session

    def _open_runtime(self, config: ModelConfig) -> tuple[ModelRuntime, ModelManifest]:
        if self._load_runtime is not None:
            return self._load_runtime(config), config.sheet or ModelManifest()
        from falaj.infer import runtimes

        return runtimes.load_runtime(config), runtimes.read_model_manifest(config)

    # ---- pointers

    def _swap_session(self, entry: ModelEntry, on_finished: FinishedCallback, session: ModelSession) -> None:
        entry.session, entry.seen, entry.used = session, session, time.monotonic()
        versions = dict(self.routes.get(session.name, {}))
        old_entry = versions.get(session.version)
        versions[session.version] = entry
        self._update_route(session.name, versions)
        if old_entry is not None:
            entry.held, old_entry.held = old_entry.held, []
            self._retire_session(old_entry)
        self._submit_held(entry)
        self._make_room(None)
        on_finished(None)

    def _update_route(self, name: str, versions: dict[str, ModelEntry]) -> None:
        versions.pop("", None)
        ordered = dict(sorted(versions.items(), key=lambda item: _version_rank(item[0])))
        if ordered:
            ordered[""] = next(reversed(ordered.values()))
            self.routes[name] = ordered
        else:
            self.routes.pop(name, None)

    def _unload_version(self, model: str, version: str, on_finished: FinishedCallback) -> None:
        try:
            entry = self.find(model, version)
        except NotFound as error:
            on_finished(error)
            self._start_next_change(model)
            return
        self._update_route(
            model, {name: other_entry for name, other_entry in self.routes[model].items() if other_entry is not entry}
        )
        self._fail_held(entry, NotFound(f"{model} was unloaded", "load it again"))

        def on_gone() -> None:
            on_finished(None)
            self._start_next_change(model)

        self._retire_session(entry, on_gone)

    def _retire_session(self, entry: ModelEntry, on_gone: Callable[[], Any] | None = None) -> None:
        """Nobody can reach its session any more: it answers what it has, then it goes."""
        session, entry.session = entry.session, None
        if session is None:
            if on_gone is not None:
                on_gone()
            return
        self.retiring.add(session)

        def on_closed(_: Any) -> None:
            self.retiring.discard(session)
            if on_gone is not None:
                on_gone()

        session.batcher.when_empty(partial(self.in_thread, partial(_close_session, session), on_closed))

    # ---- memory

    def _make_room(self, entry: ModelEntry | None) -> FalajError | None:
        """Put those away that were used least recently, until all fits; an error when it cannot."""
        max_bytes = self._memory_bytes
        if not max_bytes:
            return None
        needed_bytes = measure_folder_bytes(entry.config.folder) if entry is not None else 0
        if needed_bytes > max_bytes:
            return Invalid(
                f"the model takes {needed_bytes} bytes of memory", f"the server has {max_bytes} for all models"
            )
        loaded_entries = sorted(
            (loaded_entry for loaded_entry in self.entries() if loaded_entry.session is not None),
            key=ModelEntry.last_used,
        )
        used_bytes = sum(loaded_entry.size_bytes for loaded_entry in loaded_entries)
        while loaded_entries and used_bytes + needed_bytes > max_bytes and (needed_bytes or len(loaded_entries) > 1):
            loaded_entry = loaded_entries.pop(0)
            used_bytes -= loaded_entry.size_bytes
            self._retire_session(loaded_entry)
        return None

    def _reload_entry(self, entry: ModelEntry) -> None:
        if not entry.loading:
            entry.loading = True
            entry.used = time.monotonic()
            start_load = partial(
                self._start_load, entry, partial(self._on_reloaded, entry), partial(self._on_reload_failed, entry)
            )
            self._queue_change(entry.config.name, start_load)

    def _on_reloaded(self, entry: ModelEntry, session: ModelSession) -> None:
        entry.loading = False
        if self.routes.get(session.name, {}).get(session.version) is not entry:
            session.close()  # unloaded or replaced meanwhile; those who held were moved or told
            return
        entry.session, entry.seen, entry.used = session, session, time.monotonic()
        self._submit_held(entry)
        self._make_room(None)  # several may have come back at the same time

    def _on_reload_failed(self, entry: ModelEntry, error: FalajError | None) -> None:
        entry.loading = False
        if error is not None:
            self._fail_held(entry, error)

    def _submit_held(self, entry: ModelEntry) -> None:
        held_requests, entry.held = entry.held, []
        for held_request in held_requests:
            if entry.session is not None:
                held_request.cancel = entry.session.submit(held_request.ask, held_request.done)

    def _fail_held(self, entry: ModelEntry, error: FalajError) -> None:
        held_requests, entry.held = entry.held, []
        for held_request in held_requests:
            held_request.done(error)


def _version_rank(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() and len(version) < 19 else (-1, version)


def _start_counting(session: ModelSession) -> None:
    """By the profile in its folder. One that is no good is said, and never keeps a model from serving."""
    try:
        profile = read_model_profile(session.config)
        if profile is not None:
            session.watch(session.watcher(profile))
    except FalajError as error:
        _log.warning("the profile of %s %s is not used: %s", session.name, session.version, error)


def _close_session(session: ModelSession) -> None:
    session.close()
    release_freed_memory()
