"""Answers kept for requests that come again. The whole request is the key, so no two are taken for one another."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from falaj.core.errors import FalajError
from falaj.infer.model_statistics import ModelStatistics
from falaj.infer.request_queue import ResponseCallback
from falaj.oip.tensors import InferenceRequest, InferenceResponse, OutputTensor

MAX_CACHE_BYTES = 256 << 20
SubmitRequest = Callable[[InferenceRequest, ResponseCallback], Callable[[], None] | None]


class ResponseCache:
    """Before a session's `submit`: the newest `most` answers, those asked for least recently go first."""

    def __init__(self, submit_request: SubmitRequest, max_entries: int, statistics: ModelStatistics) -> None:
        self._submit_request, self._max_entries, self._statistics = submit_request, max_entries, statistics
        self._cached: OrderedDict[Any, tuple[InferenceResponse, int]] = OrderedDict()
        self._bytes = 0

    def submit(self, request: InferenceRequest, on_done: ResponseCallback) -> Callable[[], None] | None:
        """The answer that was given before, or a new one."""
        key = _request_key(request)
        entry = self._cached.get(key)
        if entry is None:
            self._statistics.cache_misses += 1
            return self._submit_request(request, lambda outcome: self._store_response(key, outcome, on_done))
        self._statistics.cache_hits += 1
        self._statistics.succeeded += 1
        self._cached.move_to_end(key)
        response = entry[0]
        on_done(InferenceResponse(response.model, response.version, request.id, response.outputs))
        return None

    def _store_response(self, key: Any, outcome: InferenceResponse | FalajError, on_done: ResponseCallback) -> None:
        if isinstance(outcome, InferenceResponse):
            outputs = [
                OutputTensor(tensor.name, tensor.datatype, tensor.shape, _copy_data(tensor.data))
                for tensor in outcome.outputs
            ]
            size = sum(_data_size(tensor.data) for tensor in outputs) + sum(
                _data_size(tensor) for _, _, _, tensor in key[0]
            )
            self._bytes += size - (self._cached[key][1] if key in self._cached else 0)
            self._cached[key] = (InferenceResponse(outcome.model, outcome.version, "", outputs), size)
            while len(self._cached) > self._max_entries or self._bytes > MAX_CACHE_BYTES:
                self._bytes -= self._cached.popitem(last=False)[1][1]
        on_done(outcome)


def _request_key(request: InferenceRequest) -> Any:
    inputs = tuple(
        (
            tensor.name,
            tensor.datatype,
            tensor.shape,
            tuple(tensor.data) if isinstance(tensor.data, list) else bytes(tensor.data),
        )
        for tensor in request.inputs
    )
    return (
        inputs,
        tuple(request.outputs),
        tuple(sorted((name, repr(value)) for name, value in request.parameters.items())),
    )


def _copy_data(data: Any) -> Any:
    """Not a view of a whole batch."""
    return data.copy()


def _data_size(data: Any) -> int:
    size: int = data.nbytes if hasattr(data, "nbytes") else sum(map(len, data)) if isinstance(data, list) else len(data)
    return size
