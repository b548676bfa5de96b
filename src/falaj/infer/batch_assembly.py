"""Requests to arrays and outputs to answers. Bytes are put together as they came and read in place; an answer is a view
of its own rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from falaj.core.errors import FalajError
from falaj.infer.records import Arrays
from falaj.infer.request_queue import InputLayout, QueuedRequest


class RowCountMismatch(FalajError):
    """A batch came back with other rows than it went in with."""


def assemble_inputs(members: Sequence[QueuedRequest]) -> list[Any]:
    """The model's inputs for these requests, in the model's order. The arrays cannot be written to."""
    first_member = members[0]
    layouts = first_member.key.plans
    if len(members) == 1:
        return [_single_input(layout, first_member) for layout in layouts]
    rows = sum([member.rows for member in members])
    return [_joined_input(layout, members, rows) for layout in layouts]


def check_output_rows(members: Sequence[QueuedRequest], outputs: Arrays) -> None:
    """Every output of a batch has the rows of all its members, or they cannot be told apart."""
    rows = sum([member.rows for member in members])
    for output in outputs:
        if output.shape[:1] != (rows,):
            raise RowCountMismatch("the model's outputs have not the rows of its inputs")


def cut_rows(output: Any, start: int, end: int) -> tuple[tuple[int, ...], Any]:
    """Rows `start` to `end` of an output, all where `end` is 0: their shape, and the rows."""
    rows = output[start:end] if end else output
    if rows.dtype == object:
        return rows.shape, rows.ravel().tolist()
    return rows.shape, rows


def _single_input(layout: InputLayout, member: QueuedRequest) -> Any:
    tensor = member.ask.inputs[layout.at]
    if not layout.dtype:
        return _to_object_array(list(tensor.data), tensor.shape)
    if not tensor.data:
        return np.zeros(tensor.shape, layout.dtype)
    return np.frombuffer(tensor.data, layout.dtype).reshape(tensor.shape)  # type: ignore[arg-type]


def _joined_input(layout: InputLayout, members: Sequence[QueuedRequest], rows: int) -> Any:
    input_index = layout.at
    shape = (rows, *layout.trailing)
    if not layout.dtype:
        return _to_object_array([text for member in members for text in member.ask.inputs[input_index].data], shape)
    joined = b"".join([member.ask.inputs[input_index].data for member in members])  # type: ignore[misc]
    return np.frombuffer(joined, layout.dtype).reshape(shape) if joined else np.zeros(shape, layout.dtype)


def _to_object_array(elements: list[Any], shape: tuple[int, ...]) -> Any:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)
