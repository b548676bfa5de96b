"""One version of one model in memory: what it takes is checked here, and its answers are made here. It never changes: a
new version is another session.
"""

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from math import prod
from time import monotonic, thread_time
from typing import Any

from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.sheet import Sheet, TensorSpec
from falaj.drift.records import Profile
from falaj.infer.batch import cut
from falaj.infer.batcher import BROKEN, INLINE_S, Batcher, Options, Ran
from falaj.infer.cache import Cache, Submit
from falaj.infer.curve import MOST, MOST_ON_DEVICE, Curve
from falaj.infer.queue import GONE, Done, Key, Plan, Waiting
from falaj.infer.records import ModelConfig, Runtime
from falaj.infer.sequences import Sequences, states_of
from falaj.infer.statistics import Statistics
from falaj.infer.warm import TEXT_BYTES, warm_up
from falaj.infer.watching import Watching
from falaj.oip.tensors import NUMPY, SIZES, Answer, Ask, Given, Made

_log = logging.getLogger(__name__)
MOST_KEYS = 4096


class Session:
    """A loaded model, with its queue."""

    def __init__(
        self, config: ModelConfig, sheet: Sheet, runtime: Runtime, loop: AbstractEventLoop, statistics: Statistics
    ) -> None:
        self.config, self.sheet, self.runtime, self.statistics = config, sheet, runtime, statistics
        self.name, self.version = config.name, config.version
        self.healthy = True
        self.ran: Ran | None = None
        """The run whose answers are being handed on now, for whoever traces requests."""
        self.batches = _batches(sheet, runtime)
        # A runtime that cuts large runs in parts gains nothing by them, and a second run could go beside the first.
        most = MOST if config.device.startswith("cpu") else getattr(runtime, "most_rows", MOST_ON_DEVICE)
        self.curve = Curve(min(sheet.most_rows or most, most) if self.batches else 1)
        self.inputs: tuple[TensorSpec, ...] = runtime.inputs
        self.outputs: tuple[TensorSpec, ...] = runtime.outputs
        self._made = [(one.name, one.datatype) for one in self.outputs]
        self._at = {one.name: index for index, one in enumerate(self.outputs)}
        self._keys: dict[Any, Key] = {}
        self.batcher = Batcher(runtime, self.curve, loop, self._deliver, _options(config, runtime))
        states = states_of(sheet, self.inputs, self.outputs) if sheet.stateful else []
        hidden, kept = {one.spec.name for one in states}, {one.output for one in states}
        self.shown_inputs = tuple(one for one in self.inputs if one.name not in hidden)
        self.shown_outputs = tuple(one for one in self.outputs if one.name not in kept)
        """What callers send and see: not the state of a sequence."""
        self.watching: Watching | None = None
        """Counts what it is given and answers, where there is a profile."""
        self._sequences: Sequences | None = None
        self.submit: Submit = self.enter
        """One request on its way; what is given back ends it."""
        if sheet.stateful:
            shown = [one.name for one in self.shown_outputs]
            self._sequences = Sequences(self.enter, states, shown, config.idle_s)
            self.submit = self._sequences.submit
        elif config.cache:
            self.submit = Cache(self.enter, config.cache, statistics).submit
        self._plain = self.batches and not sheet.stateful and not config.cache and not config.delay_ms

    def warm(self) -> None:
        """Run it before anybody asks, and learn what runs cost. Called in a thread, before the first request."""
        clock = self.batcher.options.clock
        took_s = warm_up(self.runtime, self.sheet, self.curve if self.batches else None, clock)
        if took_s > INLINE_S * 0.75:
            self.batcher.inline = False
        self.batcher.took_s = took_s

    def watcher(self, profile: Profile) -> Watching:
        """What would count by this profile; Invalid when it is about another model. May be called in a thread."""
        inputs = getattr(self.runtime, "watched_inputs", self.inputs)
        return Watching(profile, inputs, self.outputs, self.config.watch, batches=self.batches)

    def watch(self, watching: Watching) -> None:
        """Count by it from now on."""
        if self.config.watch.share:
            self.watching = watching
            given = getattr(self.runtime, "given", None)
            self.batcher.note = watching.note if given is None else lambda _, *told: watching.note(given(), *told)

    def enter(self, ask: Ask, done: Done, *, at_once: bool = False) -> Callable[[], None] | None:
        """Past the sequences and the cache. `at_once`: nothing more is gathered before it is run."""
        try:
            one = self._wait(ask, done)
        except FalajError as error:
            self.statistics.failed += ask.num == 1  # others are asked again, each by itself
            done(error)
            return None
        busy = self.batcher.submit(one, at_once=at_once)
        if busy is not None:
            self.statistics.refused += ask.num == 1
            done(busy)
            return None
        return partial(self.batcher.cancel, one)

    @property
    def joins(self) -> int:
        """So many rows of requests that came as one may be handed in as one; 0 where each is looked at by itself. What
        runs in a thread is cut by rows when it is free, so there they stay apart."""
        return self.curve.cap if self._plain and self.batcher.inline else 0

    def reap(self, now: float) -> None:
        """Forget sequences that nobody asks of any more."""
        if self._sequences is not None:
            self._sequences.reap(now)

    def close(self) -> None:
        """Let go of everything; call when nothing waits or runs."""
        self.batcher.close()
        self.runtime.close()

    def _wait(self, ask: Ask, done: Done) -> Waiting:
        inputs = ask.inputs
        if ask.sequence:
            raise Invalid("the model has no memory, and the request belongs to a sequence", "leave out sequence_id")
        if not self.healthy:
            raise Unavailable("the model hangs", "its server is started again")
        try:
            if self.batches:
                if len(inputs) == 1:
                    given = inputs[0]
                    rows = given.shape[0]
                    sign: Any = (given.name, given.datatype, given.shape[1:])
                else:
                    rows = _rows(inputs)
                    sign = tuple([(one.name, one.datatype, one.shape[1:]) for one in inputs])
            else:
                rows = 1
                sign = tuple([(one.name, one.datatype, one.shape) for one in inputs])
        except IndexError:
            raise Invalid("an input has no dimensions", "the first one counts rows") from None
        if ask.parameters:
            sign = (sign, tuple(sorted((name, repr(value)) for name, value in ask.parameters.items())))
        key = self._keys.get(sign)
        if key is None:
            key = self._keyed(sign, ask)
        if rows < 1 or (rows > self.curve.most and self.sheet.most_rows):
            raise Invalid(
                f"{rows} rows in one request", f"from 1 to {self.sheet.most_rows or 'as many as memory holds'}"
            )
        if ask.outputs:
            self._check_wanted(ask)
        return Waiting(ask, done, key, rows, ask.came or monotonic())

    def _keyed(self, sign: Any, ask: Ask) -> Key:
        """What comes again is looked up; this is the first time."""
        given = {one.name: index for index, one in enumerate(ask.inputs)}
        wanted = {one.name for one in self.inputs}
        if set(given) != wanted or len(given) != len(ask.inputs):
            odd = sorted(set(given) - wanted) or sorted(wanted - set(given)) or ["one twice"]
            raise Invalid(f"the inputs are not those of the model: {odd[0][:80]!r}", f"it takes {_said(self.inputs)}")
        plans = []
        unit = 0
        for spec in self.inputs:
            one = ask.inputs[given[spec.name]]
            _check_input(spec, one)
            trailing = one.shape[1:] if self.batches else one.shape
            plans.append(Plan(given[spec.name], _dtype(spec.datatype), trailing))
            unit += prod(trailing) * SIZES.get(spec.datatype, TEXT_BYTES)
        if len(self._keys) >= MOST_KEYS:
            self._keys.clear()  # those on their way keep theirs
        key = self._keys[sign] = Key(tuple(plans), dict(ask.parameters), max(1, unit), alone=not self.batches)
        return key

    def _check_wanted(self, ask: Ask) -> None:
        for name in ask.outputs:
            if name not in self._at:
                raise Invalid(f"the model has no output {name[:80]!r}", f"it gives {_said(self.outputs)}")

    def _deliver(self, ran: Ran) -> None:
        """Hand a run's answers on. An error goes to each of its members."""
        statistics, members = self.statistics, ran.members
        self.ran = ran
        if isinstance(ran.outputs, FalajError):
            for one in members:
                if one.state != GONE:
                    one.state = GONE
                    statistics.failed += one.ask.num == 1
                    one.done(ran.outputs)
            self.ran = None
            return
        began, outputs = monotonic(), ran.outputs
        start = rows = num = 0
        add = statistics.queue.add
        lone = len(members) == 1
        for one in members:
            start, rows = rows, rows + one.rows
            num += one.ask.num
            if one.state != GONE:
                one.state = GONE
                add(ran.began - one.at, one.ask.num)
                try:
                    one.done(self._answer(one.ask, outputs, start, 0 if lone else rows))
                except BROKEN:  # whoever writes the answer broke: the others are answered all the same
                    _log.exception("an answer could not be handed on")
        self.ran, ended = None, monotonic()
        statistics.last = ended
        statistics.ran(rows, num, ran.ended - ran.began, ended - began)

    def _answer(self, ask: Ask, outputs: Any, start: int, end: int) -> Answer:
        made = []
        if ask.outputs:
            for name in ask.outputs:
                index = self._at[name]
                made.append(Made(name, self._made[index][1], *cut(outputs[index], start, end)))
        else:
            for (name, datatype), output in zip(self._made, outputs, strict=True):
                made.append(Made(name, datatype, *cut(output, start, end)))
        return Answer(self.name, self.version, ask.id, made)


def _rows(inputs: Any) -> int:
    rows: int = inputs[0].shape[0]
    for one in inputs:
        if one.shape[0] != rows:
            raise Invalid(f"{one.name[:80]!r} has {one.shape[0]} rows, another input {rows}", "all inputs have as many")
    return rows


def _check_input(spec: TensorSpec, one: Given) -> None:
    fits = len(spec.shape) == len(one.shape) and all(
        wanted in (-1, size) for wanted, size in zip(spec.shape, one.shape, strict=True)
    )
    if one.datatype != spec.datatype or not fits:
        raise Invalid(
            f"{spec.name[:80]!r} was given as {one.datatype} {list(one.shape)}",
            f"the model takes {spec.datatype} {list(spec.shape)}",
        )


def _dtype(datatype: str) -> str:
    return "" if datatype == "BYTES" else NUMPY.get(datatype, "<u2")


def _said(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(one.name for one in specs)[:300] or "none"


def _batches(sheet: Sheet, runtime: Runtime) -> bool:
    told = getattr(runtime, "batches", None)
    every = (*runtime.inputs, *runtime.outputs)
    return bool(sheet.batches if told is None else told) and all(one.shape[:1] == (-1,) for one in every)


def _options(config: ModelConfig, runtime: Runtime) -> Options:
    on_device = not config.device.startswith("cpu")
    return Options(
        queue=config.queue,
        delay_s=config.delay_ms / 1000,
        threads=2 if on_device and runtime.parallel else 1,
        inline=not on_device and not runtime.isolated,
        clock=_clock(config, runtime),
    )


def _clock(config: ModelConfig, runtime: Runtime) -> Callable[[], float]:
    """Time of the thread where one thread does all the work: what neighbours take of the machine does not count."""
    works_alone = config.device.startswith("cpu") and config.threads == 1 and config.features is None
    return thread_time if works_alone and not runtime.isolated else monotonic
