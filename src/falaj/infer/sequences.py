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
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.request_queue import QueueFull, ResponseCallback
from falaj.oip.tensors import DATATYPE_BYTES, InferenceRequest, InferenceResponse, InputTensor

MAX_SEQUENCES = 10_000
STATE_PREFIX = "state."
SubmitRequest = Callable[[InferenceRequest, ResponseCallback], Callable[[], None] | None]


class StateTensor(NamedTuple):
    """An input that is fed from an output."""

    spec: TensorSpec
    output: str


class SequenceState:
    """One sequence: its state, and its requests in order."""

    __slots__ = ("begun", "last", "running", "state", "waiting")

    def __init__(self) -> None:
        self.state: list[InputTensor] = []
        self.begun = self.running = False
        self.last = monotonic()
        self.waiting: deque[list[Any]] = deque()


class SequenceScheduler:
    """Before a session's `submit`, for models that have a memory."""

    def __init__(
        self,
        submit_request: SubmitRequest,
        state_tensors: Sequence[StateTensor],
        shown_outputs: Sequence[str],
        idle_s: float,
    ) -> None:
        self._submit_request, self._state_tensors, self._shown_outputs, self._idle_s = (
            submit_request,
            state_tensors,
            shown_outputs,
            idle_s,
        )
        self._sequences: dict[int | str, SequenceState] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def submit(self, request: InferenceRequest, on_done: ResponseCallback) -> Callable[[], None] | None:
        """The request when those before it are answered."""
        if not request.sequence:
            on_done(Invalid("the model has a memory, and the request belongs to no sequence", "give sequence_id"))
            return None
        sequence = self._sequences.get(request.sequence)
        if sequence is None:
            if len(self._sequences) >= MAX_SEQUENCES:
                on_done(
                    QueueFull(
                        f"{MAX_SEQUENCES} sequences are open already", "end those that are done, or come again later"
                    )
                )
                return None
            sequence = self._sequences[request.sequence] = SequenceState()
        waiting_request = [request, on_done]
        sequence.waiting.append(waiting_request)
        if not sequence.running:
            self._run_next(request.sequence, sequence)
        return partial(_drop_request, waiting_request)

    def reap(self, now: float) -> None:
        """Forget those nobody asked of for long."""
        for name in [
            name
            for name, sequence in self._sequences.items()
            if not sequence.running and now - sequence.last > self._idle_s
        ]:
            del self._sequences[name]

    def _run_next(self, name: int | str, sequence: SequenceState) -> None:
        """The next request of a sequence; a loop where many fail at once."""
        while sequence.waiting and not sequence.running:
            waiting_request = sequence.waiting.popleft()
            request: InferenceRequest = waiting_request[0]
            if waiting_request[1] is None:
                continue
            if not request.sequence_start and not sequence.begun:
                waiting_request[1](
                    Invalid(f"there is no sequence {str(name)[:60]!r}", "its first request says sequence_start")
                )
                continue
            sequence.running, sequence.last = True, monotonic()
            self._submit_request(
                self._with_state(request, sequence), partial(self._on_response, name, sequence, waiting_request)
            )
        if not sequence.running and not sequence.begun:
            self._sequences.pop(name, None)

    def _with_state(self, request: InferenceRequest, sequence: SequenceState) -> InferenceRequest:
        state = sequence.state
        if request.sequence_start or not sequence.begun:
            rows = request.inputs[0].shape[0] if request.inputs and request.inputs[0].shape else 1
            state = [_zero_tensor(state_tensor.spec, rows) for state_tensor in self._state_tensors]
        inner_request = InferenceRequest(request.model, request.version, [*request.inputs, *state])
        inner_request.id, inner_request.name, inner_request.deadline, inner_request.priority = (
            request.id,
            request.name,
            request.deadline,
            request.priority,
        )
        inner_request.parameters = request.parameters
        if self._state_tensors:
            inner_request.outputs = [
                *(request.outputs or self._shown_outputs),
                *(state_tensor.output for state_tensor in self._state_tensors),
            ]
        else:
            inner_request.outputs = request.outputs
            sequence_parameters = {"sequence_start": request.sequence_start, "sequence_end": request.sequence_end}
            inner_request.parameters = {**request.parameters, "sequence_id": request.sequence, **sequence_parameters}
        return inner_request

    def _on_response(
        self,
        name: int | str,
        sequence: SequenceState,
        waiting_request: list[Any],
        outcome: InferenceResponse | FalajError,
    ) -> None:
        sequence.running, sequence.last = False, monotonic()
        request: InferenceRequest = waiting_request[0]
        if isinstance(outcome, InferenceResponse):
            sequence.begun = not request.sequence_end
            if self._state_tensors:
                new_states = outcome.outputs[-len(self._state_tensors) :]
                outcome.outputs = outcome.outputs[: -len(self._state_tensors)]
                pairs = zip(self._state_tensors, new_states, strict=True)
                sequence.state = [
                    InputTensor(
                        state_tensor.spec.name,
                        state_tensor.spec.datatype,
                        new_state.shape,
                        _to_raw_data(new_state.data),
                    )
                    for state_tensor, new_state in pairs
                ]
        if waiting_request[1] is not None:
            waiting_request[1](outcome)
        self._run_next(name, sequence)


def find_state_tensors(
    manifest: ModelManifest, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> list[StateTensor]:
    """The pairs that a sheet names; Invalid where the model has them not, or of another type."""
    by_input, by_output = ({spec.name: spec for spec in specs} for specs in (inputs, outputs))
    state_tensors = []
    for key, output in manifest.parameters.items():
        if not key.startswith(STATE_PREFIX):
            continue
        input_spec, output_spec = by_input.get(key.removeprefix(STATE_PREFIX)), by_output.get(output)
        if input_spec is None or output_spec is None or input_spec.datatype != output_spec.datatype:
            raise Invalid(f"{key[:80]} = {output[:80]} is no state of the model", "an input, and an output of its type")
        state_tensors.append(StateTensor(input_spec, output))
    return state_tensors


def _zero_tensor(spec: TensorSpec, rows: int) -> InputTensor:
    sizes = tuple(max(0, dimension) for dimension in spec.shape)
    shape = (rows, *sizes[1:]) if spec.shape and spec.shape[0] < 0 else sizes
    data: Any = [b""] * prod(shape) if spec.datatype == "BYTES" else bytes(prod(shape) * DATATYPE_BYTES[spec.datatype])
    return InputTensor(spec.name, spec.datatype, shape, data)


def _to_raw_data(data: Any) -> Any:
    return list(data) if isinstance(data, list) else data.tobytes()


def _drop_request(waiting_request: list[Any]) -> None:
    waiting_request[1] = None
