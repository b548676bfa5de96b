"""All models of one server: requests are handed to the version they name, and versions come and go without anybody
noticing. A new one is loaded and warmed first, then the pointer is swapped, then the old one answers what it has and
goes; a load that fails changes nothing.

Everything here is called on the thread of one event loop, and calls back on it; loading is done in threads.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.sheet import Sheet
from falaj.infer.batcher import BROKEN
from falaj.infer.memory import folder_bytes, trim
from falaj.infer.queue import Busy, Done
from falaj.infer.records import Config, Load, ModelConfig
from falaj.infer.repository import Repository
from falaj.infer.session import Session
from falaj.infer.statistics import exposition
from falaj.oip.tensors import Ask

Finished = Callable[[FalajError | None], Any]
TICK_S = 0.25
LOADERS = 4


class Entry:
    """One version that the server knows, in memory or put away until somebody asks for it."""

    __slots__ = ("config", "held", "loading", "session", "used")

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.session: Session | None = None
        self.held: list[tuple[Ask, Done]] = []
        self.loading = False
        self.used = time.monotonic()


class Engine:
    """The models of a server."""

    def __init__(
        self,
        config: Config | None = None,
        load: Load | None = None,
        *,
        on_hung: Callable[[Session], Any] | None = None,
    ) -> None:
        self.settings = config or Config()
        shelf = self.settings.repository
        self._repository = Repository(shelf) if shelf else None
        self._load_with = load
        self._on_hung = on_hung
        self._loop = asyncio.get_running_loop()
        self._routes: dict[str, dict[str, Entry]] = {}
        self._lines: dict[str, deque[Callable[[], Any]]] = {}
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="falaj-load")
        self._retiring: set[Session] = set()
        self.draining = False
        self._ticking = self._loop.call_later(TICK_S, self._tick)

    # ---- requests

    def submit(self, ask: Ask, done: Done) -> Callable[[], None] | None:
        """Run it; `done` is called once, on the loop, with the answer or what went wrong. What is given back ends it
        when nobody wants it any more."""
        versions = self._routes.get(ask.model)
        entry = versions.get(ask.version) if versions is not None else None
        if entry is None:
            done(self._missing(ask.model, ask.version))
            return None
        session = entry.session
        if session is None:
            return self._hold(entry, ask, done)
        return session.submit(ask, done)

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether a model can be asked; without a name, whether all can."""
        if self.draining:
            return False
        if not model:
            return all(_fit(entry) for versions in self._routes.values() for entry in versions.values())
        entry = self._routes.get(model, {}).get(version)
        return entry is not None and _fit(entry)

    def names(self) -> tuple[tuple[str, str], ...]:
        """Names and versions of all models, in order."""
        return tuple((entry.config.name, entry.config.version) for entry in self._entries())

    # ---- what it says of itself

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """What the protocol tells of a model."""
        session = self._session(model, version)
        return {
            "name": model,
            "versions": [one for one in self._routes[model] if one],
            "platform": session.runtime.platform,
            "inputs": _tensors(session.inputs),
            "outputs": _tensors(session.outputs),
        }

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        """Triton's ModelConfig, as far as clients read it."""
        session = self._session(model, version)
        most = (session.sheet.most_rows or session.curve.most) if session.batches else 0
        skip = 1 if session.batches else 0
        found: dict[str, Any] = {
            "name": model,
            "platform": session.runtime.platform,
            "backend": session.runtime.platform.partition("_")[0],
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": most,
            "input": [_configured(one, skip) for one in session.inputs],
            "output": [_configured(one, skip) for one in session.outputs],
        }
        if session.batches:
            delay_us = int(session.config.delay_ms * 1000)
            found["dynamic_batching"] = {"preferred_batch_size": [], "max_queue_delay_microseconds": delay_us}
        if session.sheet.stateful:
            found["sequence_batching"] = {"max_sequence_idle_microseconds": int(session.config.idle_s * 1e6)}
        return found

    def statistics(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Triton's statistics extension."""
        if model:
            sessions = [self._session(model, version)]
        else:
            sessions = [entry.session for entry in self._entries() if entry.session is not None]
        return {"model_stats": [one.statistics.triton(one.name, one.version) for one in sessions]}

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """The repository: every model that is loaded or could be."""
        found = [
            {"name": entry.config.name, "version": entry.config.version, "state": _state(entry), "reason": ""}
            for entry in self._entries()
        ]
        known = {(one["name"], one["version"]) for one in found}
        for name, version in () if ready or self._repository is None else self._repository.all():
            if (name, version) not in known:
                found.append({"name": name, "version": version, "state": "UNAVAILABLE", "reason": "unloaded"})
        return [one for one in found if one["state"] == "READY" or not ready]

    def metrics(self) -> bytes:
        """Counts and histograms as Prometheus reads them."""
        sessions = [entry.session for entry in self._entries() if entry.session is not None]
        return exposition((one.name, one.version, one.statistics, one.batcher.waiting) for one in sessions)

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
                    self.remove(name, version, _ignore)

        self.place(config, placed)

    def unload(self, name: str, parameters: Mapping[str, Any], done: Finished) -> None:
        """Take all versions of a model out of memory."""
        del parameters  # `unload_dependents` says to unload what an ensemble is made of; ours own theirs
        try:
            self._shelf()
        except FalajError as error:
            done(error)
            return
        versions = [one for one in self._routes.get(name, {}) if one]
        for version in versions[:-1]:
            self.remove(name, version, _ignore)
        self.remove(name, versions[-1] if versions else "", done)

    def place(self, config: ModelConfig, done: Finished) -> None:
        """Load this version, warm it, and let it be asked; the one of the same name and version goes."""
        entry = Entry(config)
        self._in_turn(config.name, partial(self._begin, entry, partial(self._swap, entry, done), done))

    def remove(self, model: str, version: str, done: Finished) -> None:
        """Ask it no more; `done` when what it had is answered and its memory is given back."""
        self._in_turn(model, partial(self._take_away, model, version, done))

    async def placed(self, config: ModelConfig) -> None:
        """`place`, for whoever can wait."""
        await _waited(partial(self.place, config))

    async def close(self, within_s: float = 5.0) -> None:
        """End everything; what still waits is told so."""
        self.draining = True
        self._ticking.cancel()
        until = time.monotonic() + within_s
        while self.busy and time.monotonic() < until:  # noqa: ASYNC110 - nobody has to count for it
            await asyncio.sleep(0.005)
        for entry in self._entries():
            if entry.session is not None:
                entry.session.batcher.fail_all(Unavailable("the server ends", "ask another one"))
                entry.session.close()
        self._routes.clear()
        self._loaders.shutdown(wait=False, cancel_futures=True)

    def replan(self, plan: Mapping[str, Any]) -> None:
        """Which features models that are asked by keys read from now on."""
        for entry in self._entries():
            again = getattr(entry.session.runtime, "replan", None) if entry.session is not None else None
            if again is not None:
                again(plan)

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        sessions = [entry.session for entry in self._entries() if entry.session is not None]
        return any(one.batcher.busy for one in (*sessions, *self._retiring))

    def _shelf(self) -> Repository:
        if self._repository is None:
            raise Invalid(
                "models of this server cannot be loaded or unloaded by callers",
                "it was started without a folder of models",
            )
        return self._repository

    def _in_turn(self, name: str, work: Callable[[], Any]) -> None:
        """Changes of one model, one after the other; of different ones, at the same time."""
        line = self._lines.setdefault(name, deque())
        line.append(work)
        if len(line) == 1:
            work()

    def _next(self, name: str) -> None:
        line = self._lines[name]
        line.popleft()
        if line:
            line[0]()
        else:
            del self._lines[name]

    def _begin(self, entry: Entry, use: Callable[[Session], Any], done: Finished) -> None:
        name = entry.config.name
        refused = self._make_room(entry)
        if refused is not None:
            done(refused)
            self._next(name)
            return

        def finish(found: Session | FalajError) -> None:
            if isinstance(found, FalajError):
                done(found)
            else:
                use(found)
            self._next(name)

        self._in_thread(partial(self._loaded, entry.config), finish)

    def _in_thread(self, work: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        def run() -> None:
            found = work()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(finish, found)

        self._loaders.submit(run)

    def _loaded(self, config: ModelConfig) -> "Session | FalajError":
        """In a thread: the session, warm, or why not."""
        try:
            load, sheet = self._load_with, config.sheet or Sheet()
            if load is None:
                from falaj.infer import runtimes

                load, sheet = runtimes.load, runtimes.sheet_of(config)
            session = Session(config, sheet, load(config), self._loop)
            session.warm()
        except FalajError as error:
            return error
        except BROKEN as error:
            return Invalid(
                f"{config.name} cannot be loaded: {type(error).__name__}: {error}"[:500], "look at its files"
            )
        return session

    def _swap(self, entry: Entry, done: Finished, session: Session) -> None:
        entry.session = session
        versions = dict(self._routes.get(session.name, {}))
        old = versions.get(session.version)
        versions[session.version] = entry
        self._route(session.name, versions)
        if old is not None:
            self._retire(old)
            entry.held, old.held = old.held, []
        self._release(entry)
        self._make_room(None)
        done(None)

    def _route(self, name: str, versions: dict[str, Entry]) -> None:
        versions.pop("", None)
        ordered = dict(sorted(versions.items(), key=lambda item: _rank(item[0])))
        if ordered:
            ordered[""] = next(reversed(ordered.values()))
            self._routes[name] = ordered
        else:
            self._routes.pop(name, None)

    def _take_away(self, model: str, version: str, done: Finished) -> None:
        versions = dict(self._routes.get(model, {}))
        entry = versions.pop(version, None)
        if entry is None:
            done(self._missing(model, version))
            self._next(model)
            return
        versions = {name: one for name, one in versions.items() if one is not entry}
        self._route(model, versions)
        self._fail_held(entry, NotFound(f"{model} was unloaded", "load it again"))

        def gone() -> None:
            done(None)
            self._next(model)

        self._retire(entry, gone)

    def _retire(self, entry: Entry, gone: Callable[[], Any] | None = None) -> None:
        """A session that nobody can reach any more: it answers what it has, then it goes."""
        session, entry.session = entry.session, None
        if session is None:
            if gone is not None:
                gone()
            return
        self._retiring.add(session)

        def closed(_: Any) -> None:
            self._retiring.discard(session)
            if gone is not None:
                gone()

        session.batcher.when_empty(partial(self._in_thread, partial(_close, session), closed))

    # ---- memory

    def _make_room(self, entry: Entry | None) -> FalajError | None:
        """Put those away that were used least recently, until all fits; an error when it cannot."""
        most = self.settings.memory_bytes
        if not most:
            return None
        need = folder_bytes(entry.config.folder) if entry is not None else 0
        if need > most:
            return Invalid(f"the model takes {need} bytes of memory", f"the server has {most} for all models")
        there = sorted((one for one in self._entries() if one.session is not None), key=_used)
        taken = sum(_bytes_of(one) for one in there)
        while there and taken + need > most and (need or len(there) > 1):
            one = there.pop(0)
            taken -= _bytes_of(one)
            one.used = _used(one)
            self._retire(one)
        return None

    def _hold(self, entry: Entry, ask: Ask, done: Done) -> Callable[[], None] | None:
        """The request waits until its model is back in memory."""
        if len(entry.held) >= entry.config.queue:
            done(Busy(f"{entry.config.queue} requests wait for the model already", "come again later"))
            return None
        one = (ask, done)
        entry.held.append(one)
        if not entry.loading:
            entry.loading = True
            entry.used = time.monotonic()
            back = partial(self._begin, entry, partial(self._back, entry), partial(self._not_back, entry))
            self._in_turn(entry.config.name, back)
        return partial(_drop, entry.held, one)

    def _back(self, entry: Entry, session: Session) -> None:
        if self._routes.get(session.name, {}).get(session.version) is not entry:
            session.close()  # unloaded or replaced meanwhile; those who held were moved or told
            return
        entry.session = session
        entry.loading = False
        self._release(entry)

    def _not_back(self, entry: Entry, error: FalajError | None) -> None:
        entry.loading = False
        if error is not None:
            self._fail_held(entry, error)

    def _release(self, entry: Entry) -> None:
        held, entry.held = entry.held, []
        for ask, done in held:
            self.submit(ask, done)

    def _fail_held(self, entry: Entry, error: FalajError) -> None:
        held, entry.held = entry.held, []
        for _, done in held:
            done(error)

    # ---- what runs too long

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        now = time.monotonic()
        for entry in self._entries():
            session = entry.session
            if session is not None:
                stuck = session.batcher.stuck(now - session.config.timeout_s)
                if stuck:
                    self._hung(entry, session, stuck)

    def _hung(self, entry: Entry, session: Session, stuck: Sequence[Any]) -> None:
        limit_s = session.config.timeout_s
        error = Unavailable(f"the model did not answer within {limit_s:g} s", "its runtime is started again")
        session.batcher.fail(stuck, error)
        if session.runtime.isolated:
            self._restart(entry, session)
        elif session.healthy:
            session.healthy = False
            session.batcher.fail_all(error)
            if self._on_hung is not None:
                self._on_hung(session)

    def _restart(self, entry: Entry, session: Session) -> None:
        """End the process it runs in, and go on with another one; those who wait, wait for that."""
        old = session.runtime
        session.batcher.suspend()

        def again() -> "Session | FalajError":
            old.close()
            return self._loaded(session.config)

        def finish(found: "Session | FalajError") -> None:
            if isinstance(found, FalajError):
                session.healthy = False
                session.batcher.fail_all(found)
                session.batcher.replace(old)
            elif entry.session is session:
                session.runtime = found.runtime
                session.batcher.replace(found.runtime)
            else:
                found.close()

        self._in_thread(again, finish)

    # ---- small things

    def _entries(self) -> list[Entry]:
        return [one for versions in self._routes.values() for name, one in versions.items() if name]

    def _session(self, model: str, version: str) -> Session:
        entry = self._routes.get(model, {}).get(version)
        if entry is None or entry.session is None:
            raise self._missing(model, version)
        return entry.session

    def _missing(self, model: str, version: str) -> NotFound:
        if model in self._routes:
            there = ", ".join(name for name in self._routes[model] if name)
            return NotFound(f"{model[:100]} has no version {version[:40]!r} here", f"it has {there}"[:300])
        return NotFound(f"there is no model {model[:100]!r} here", "look at the index of the server")


def _ignore(error: FalajError | None) -> None:
    """Whoever began it does not wait for it."""


def _fit(entry: Entry) -> bool:
    return entry.session is None or entry.session.healthy


def _state(entry: Entry) -> str:
    return "READY" if _fit(entry) else "UNAVAILABLE"


def _rank(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() and len(version) < 19 else (-1, version)


def _used(entry: Entry) -> float:
    return max(entry.used, entry.session.statistics.last) if entry.session is not None else entry.used


def _bytes_of(entry: Entry) -> int:
    return entry.session.runtime.size_bytes if entry.session is not None else 0


def _drop(held: list[tuple[Ask, Done]], one: tuple[Ask, Done]) -> None:
    if one in held:
        held.remove(one)


def _close(session: Session) -> None:
    session.close()
    trim()


def _tensors(specs: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in specs]


def _configured(spec: Any, skip: int) -> Mapping[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape[skip:])}


async def _waited(begin: Callable[[Finished], Any]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: FalajError | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    begin(done)
    await future
