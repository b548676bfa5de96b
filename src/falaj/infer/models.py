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
from falaj.core.heaps import trim
from falaj.core.sheet import Sheet
from falaj.infer.batcher import BROKEN
from falaj.infer.memory import folder_bytes
from falaj.infer.queue import Busy, Done, late_error
from falaj.infer.records import Load, ModelConfig, Runtime
from falaj.infer.session import Session
from falaj.infer.statistics import Statistics
from falaj.infer.watching import read_folder
from falaj.oip.tensors import Ask

_log = logging.getLogger(__name__)
Finished = Callable[[FalajError | None], Any]
LOADERS = 4


class Held:
    """A request whose model is on its way into memory."""

    __slots__ = ("ask", "cancel", "done", "entry")

    def __init__(self, entry: "Entry", ask: Ask, done: Done) -> None:
        self.entry, self.ask, self.done = entry, ask, done
        self.cancel: Callable[[], None] | None = None

    def end(self) -> None:
        """Nobody wants it any more."""
        if self in self.entry.held:
            self.entry.held.remove(self)
        elif self.cancel is not None:
            self.cancel()


class Entry:
    """One version that the server knows: in memory, or put away until somebody asks for it."""

    __slots__ = ("config", "held", "loading", "seen", "session", "statistics", "used")

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.session: Session | None = None
        self.seen: Session | None = None
        """The last one: what it was like is known also while it is not in memory."""
        self.statistics = Statistics()
        self.held: list[Held] = []
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


class Models:
    """All of them. Called on the loop's thread, calls back on it; loading is done in threads."""

    def __init__(self, load: Load | None, memory_bytes: int) -> None:
        self.routes: dict[str, dict[str, Entry]] = {}
        """By name, then by version; under no version, the newest."""
        self.retiring: set[Session] = set()
        self._load, self._memory_bytes, self._closed = load, memory_bytes, False
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, deque[Callable[[], Any]]] = {}
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="falaj-load")

    def entries(self) -> list[Entry]:
        """Every version once, in order."""
        return [one for versions in self.routes.values() for name, one in versions.items() if name]

    def find(self, model: str, version: str) -> Entry:
        """One of them, or NotFound."""
        versions = self.routes.get(model)
        if versions is None:
            raise NotFound(f"there is no model {model[:100]!r} here", "look at the index of the server")
        entry = versions.get(version)
        if entry is None:
            there = ", ".join(name for name in versions if name)
            raise NotFound(f"{model[:100]} has no version {version[:40]!r} here", f"it has {there}"[:300])
        return entry

    def place(self, config: ModelConfig, done: Finished) -> None:
        """Load this version, warm it, and let it be asked; the one of the same name and version goes."""
        entry = Entry(config)
        self._in_turn(config.name, partial(self._begin, entry, partial(self._swap, entry, done), done))

    def remove(self, model: str, version: str, done: Finished) -> None:
        """Ask it no more; `done` when what it had is answered and its memory is given back."""
        self._in_turn(model, partial(self._take_away, model, version, done))

    def hold(self, entry: Entry, ask: Ask, done: Done) -> Callable[[], None] | None:
        """The request waits until its model is back in memory."""
        if self._closed:
            done(Unavailable("the server ends", "ask another one"))
            return None
        if len(entry.held) >= entry.config.queue:
            done(Busy(f"{entry.config.queue} requests wait for the model already", "come again later"))
            return None
        one = Held(entry, ask, done)
        entry.held.append(one)
        self._bring_back(entry)
        return one.end

    def expire(self, entry: Entry, now: float) -> None:
        """Tell those who held too long."""
        for one in [one for one in entry.held if one.ask.deadline and one.ask.deadline <= now]:
            entry.held.remove(one)
            one.done(late_error())

    def restart(self, entry: Entry | None, session: Session) -> None:
        """End a runtime that hangs in a process of its own; those who wait are asked again of the next one. One that
        nobody reaches any more is only ended."""
        waiting = session.batcher.give_up()
        self.in_thread(session.close, lambda _: self.retiring.discard(session))
        if entry is None:
            session.batcher.fail(waiting, Unavailable("the model was unloaded while it hung", "ask the next version"))
            return
        entry.session = None
        entry.held += [Held(entry, one.ask, one.done) for one in waiting]
        self._bring_back(entry)

    def close(self) -> None:
        """Let go of all; what they did is still known."""
        self._closed = True
        gone = Unavailable("the server ends", "ask another one")
        for entry in self.entries():
            session, entry.session = entry.session, None
            self._fail_held(entry, gone)
            if session is not None:
                session.batcher.fail_all(gone)
                session.close()
        self._loaders.shutdown(wait=False, cancel_futures=True)

    def in_thread(self, work: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        """`finish` is called on the loop with what `work` gave in a thread."""

        def run() -> None:
            found = work()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(finish, found)

        self._loaders.submit(run)

    # ---- one change of a model after the other; of different ones, at the same time

    def _in_turn(self, name: str, work: Callable[[], Any]) -> None:
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

        self.in_thread(partial(self._loaded, entry), finish)

    def _loaded(self, entry: Entry) -> "Session | FalajError":
        """In a thread: the session, warm, or why not."""
        config = entry.config
        with contextlib.ExitStack() as undone:
            undone.callback(trim)
            try:
                runtime, sheet = self._runtime(config)
                undone.callback(runtime.close)
                session = Session(config, sheet, runtime, self._loop, entry.statistics)
                session.warm()
                _watch(session)
            except FalajError as error:
                return error
            except BROKEN as error:
                said = f"{config.name} cannot be loaded: {type(error).__name__}: {error}"
                return Invalid(said[:500], "look at its files")
            undone.pop_all()
        return session

    def _runtime(self, config: ModelConfig) -> tuple[Runtime, Sheet]:
        if self._load is not None:
            return self._load(config), config.sheet or Sheet()
        from falaj.infer import runtimes

        return runtimes.load(config), runtimes.sheet_of(config)

    # ---- pointers

    def _swap(self, entry: Entry, done: Finished, session: Session) -> None:
        entry.session, entry.seen, entry.used = session, session, time.monotonic()
        versions = dict(self.routes.get(session.name, {}))
        old = versions.get(session.version)
        versions[session.version] = entry
        self._route(session.name, versions)
        if old is not None:
            entry.held, old.held = old.held, []
            self._retire(old)
        self._release(entry)
        self._make_room(None)
        done(None)

    def _route(self, name: str, versions: dict[str, Entry]) -> None:
        versions.pop("", None)
        ordered = dict(sorted(versions.items(), key=lambda item: _rank(item[0])))
        if ordered:
            ordered[""] = next(reversed(ordered.values()))
            self.routes[name] = ordered
        else:
            self.routes.pop(name, None)

    def _take_away(self, model: str, version: str, done: Finished) -> None:
        try:
            entry = self.find(model, version)
        except NotFound as error:
            done(error)
            self._next(model)
            return
        self._route(model, {name: one for name, one in self.routes[model].items() if one is not entry})
        self._fail_held(entry, NotFound(f"{model} was unloaded", "load it again"))

        def gone() -> None:
            done(None)
            self._next(model)

        self._retire(entry, gone)

    def _retire(self, entry: Entry, gone: Callable[[], Any] | None = None) -> None:
        """Nobody can reach its session any more: it answers what it has, then it goes."""
        session, entry.session = entry.session, None
        if session is None:
            if gone is not None:
                gone()
            return
        self.retiring.add(session)

        def closed(_: Any) -> None:
            self.retiring.discard(session)
            if gone is not None:
                gone()

        session.batcher.when_empty(partial(self.in_thread, partial(_close, session), closed))

    # ---- memory

    def _make_room(self, entry: Entry | None) -> FalajError | None:
        """Put those away that were used least recently, until all fits; an error when it cannot."""
        most = self._memory_bytes
        if not most:
            return None
        need = folder_bytes(entry.config.folder) if entry is not None else 0
        if need > most:
            return Invalid(f"the model takes {need} bytes of memory", f"the server has {most} for all models")
        there = sorted((one for one in self.entries() if one.session is not None), key=Entry.last_used)
        taken = sum(one.size_bytes for one in there)
        while there and taken + need > most and (need or len(there) > 1):
            one = there.pop(0)
            taken -= one.size_bytes
            self._retire(one)
        return None

    def _bring_back(self, entry: Entry) -> None:
        if not entry.loading:
            entry.loading = True
            entry.used = time.monotonic()
            back = partial(self._begin, entry, partial(self._back, entry), partial(self._not_back, entry))
            self._in_turn(entry.config.name, back)

    def _back(self, entry: Entry, session: Session) -> None:
        entry.loading = False
        if self.routes.get(session.name, {}).get(session.version) is not entry:
            session.close()  # unloaded or replaced meanwhile; those who held were moved or told
            return
        entry.session, entry.seen, entry.used = session, session, time.monotonic()
        self._release(entry)
        self._make_room(None)  # several may have come back at the same time

    def _not_back(self, entry: Entry, error: FalajError | None) -> None:
        entry.loading = False
        if error is not None:
            self._fail_held(entry, error)

    def _release(self, entry: Entry) -> None:
        held, entry.held = entry.held, []
        for one in held:
            if entry.session is not None:
                one.cancel = entry.session.submit(one.ask, one.done)

    def _fail_held(self, entry: Entry, error: FalajError) -> None:
        held, entry.held = entry.held, []
        for one in held:
            one.done(error)


def _rank(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() and len(version) < 19 else (-1, version)


def _watch(session: Session) -> None:
    """By the profile in its folder. One that is no good is said, and never keeps a model from serving."""
    try:
        profile = read_folder(session.config)
        if profile is not None:
            session.watch(session.watcher(profile))
    except FalajError as error:
        _log.warning("the profile of %s %s is not used: %s", session.name, session.version, error)


def _close(session: Session) -> None:
    session.close()
    trim()
