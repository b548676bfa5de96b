"""Models with a memory: requests of one sequence are run one after the other, each with what the last one left.

The sheet says which output is fed back to which input: parameters `state.<input>` = `<output>`. Callers neither send
nor see those. A sequence begins with zeros (sizes that vary begin at 0, as a cache of keys and values does). A request
that fails leaves the state as it was. A model without such parameters keeps its own memory and is told of sequences
by the parameters sequence_id, sequence_start and sequence_end; its requests are run one by one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from time import monotonic
from typing import Any, NamedTuple

from falaj.core.errors import FalajError, Invalid
from falaj.core.sheet import Sheet, TensorSpec
from falaj.infer.queue import Busy, Done
from falaj.oip.tensors import SIZES, Answer, Ask, Given

MOST = 10_000
PREFIX = "state."
Submit = Callable[[Ask, Done], Callable[[], None] | None]


class State(NamedTuple):
    """An input that is fed from an output."""

    spec: TensorSpec
    output: str


class Line:
    """One sequence: its state, and its requests in order."""

    __slots__ = ("begun", "last", "running", "state", "waiting")

    def __init__(self) -> None:
        self.state: list[Given] = []
        self.begun = self.running = False
        self.last = monotonic()
        self.waiting: deque[list[Any]] = deque()


class Sequences:
    """Before a session's `submit`, for models that have a memory."""

    def __init__(self, submit: Submit, states: Sequence[State], shown: Sequence[str], idle_s: float) -> None:
        self._submit, self._states, self._shown, self._idle_s = submit, states, shown, idle_s
        self._lines: dict[int | str, Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def submit(self, ask: Ask, done: Done) -> Callable[[], None] | None:
        """The request when those before it are answered."""
        if not ask.sequence:
            done(Invalid("the model has a memory, and the request belongs to no sequence", "give sequence_id"))
            return None
        line = self._lines.get(ask.sequence)
        if line is None:
            if len(self._lines) >= MOST:
                done(Busy(f"{MOST} sequences are open already", "end those that are done, or come again later"))
                return None
            line = self._lines[ask.sequence] = Line()
        one = [ask, done]
        line.waiting.append(one)
        if not line.running:
            self._next(ask.sequence, line)
        return partial(_unwanted, one)

    def reap(self, now: float) -> None:
        """Forget those nobody asked of for long."""
        for name in [name for name, line in self._lines.items() if not line.running and now - line.last > self._idle_s]:
            del self._lines[name]

    def _next(self, name: int | str, line: Line) -> None:
        """The next request of a sequence; a loop where many fail at once."""
        while line.waiting and not line.running:
            one = line.waiting.popleft()
            ask: Ask = one[0]
            if one[1] is None:
                continue
            if not ask.sequence_start and not line.begun:
                one[1](Invalid(f"there is no sequence {str(name)[:60]!r}", "its first request says sequence_start"))
                continue
            line.running, line.last = True, monotonic()
            self._submit(self._with_state(ask, line), partial(self._ended, name, line, one))
        if not line.running and not line.begun:
            self._lines.pop(name, None)

    def _with_state(self, ask: Ask, line: Line) -> Ask:
        state = line.state
        if ask.sequence_start or not line.begun:
            rows = ask.inputs[0].shape[0] if ask.inputs and ask.inputs[0].shape else 1
            state = [_zeros(one.spec, rows) for one in self._states]
        inner = Ask(ask.model, ask.version, [*ask.inputs, *state])
        inner.id, inner.name, inner.deadline, inner.priority = ask.id, ask.name, ask.deadline, ask.priority
        inner.parameters = ask.parameters
        if self._states:
            inner.outputs = [*(ask.outputs or self._shown), *(one.output for one in self._states)]
        else:
            inner.outputs = ask.outputs
            told = {"sequence_start": ask.sequence_start, "sequence_end": ask.sequence_end}
            inner.parameters = {**ask.parameters, "sequence_id": ask.sequence, **told}
        return inner

    def _ended(self, name: int | str, line: Line, one: list[Any], got: Answer | FalajError) -> None:
        line.running, line.last = False, monotonic()
        ask: Ask = one[0]
        if isinstance(got, Answer):
            line.begun = not ask.sequence_end
            if self._states:
                made = got.outputs[-len(self._states) :]
                got.outputs = got.outputs[: -len(self._states)]
                pairs = zip(self._states, made, strict=True)
                line.state = [Given(of.spec.name, of.spec.datatype, new.shape, _raw(new.data)) for of, new in pairs]
        if one[1] is not None:
            one[1](got)
        self._next(name, line)


def states_of(sheet: Sheet, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[State]:
    """The pairs that a sheet names; Invalid where the model has them not, or of another type."""
    by_input, by_output = ({one.name: one for one in specs} for specs in (inputs, outputs))
    found = []
    for key, output in sheet.parameters.items():
        if not key.startswith(PREFIX):
            continue
        into, out = by_input.get(key.removeprefix(PREFIX)), by_output.get(output)
        if into is None or out is None or into.datatype != out.datatype:
            raise Invalid(f"{key[:80]} = {output[:80]} is no state of the model", "an input, and an output of its type")
        found.append(State(into, output))
    return found


def _zeros(spec: TensorSpec, rows: int) -> Given:
    sizes = tuple(max(0, one) for one in spec.shape)
    shape = (rows, *sizes[1:]) if spec.shape and spec.shape[0] < 0 else sizes
    data: Any = [b""] * prod(shape) if spec.datatype == "BYTES" else bytes(prod(shape) * SIZES[spec.datatype])
    return Given(spec.name, spec.datatype, shape, data)


def _raw(data: Any) -> Any:
    return list(data) if isinstance(data, list) else data.tobytes()


def _unwanted(one: list[Any]) -> None:
    one[1] = None
