"""Requests to arrays and outputs to answers. Bytes are put together as they came and read in place; an answer is a view
of its own rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from falaj.core.errors import FalajError
from falaj.infer.queue import Plan, Waiting
from falaj.infer.records import Arrays


class Misfit(FalajError):
    """A batch came back with other rows than it went in with."""


def assemble(members: Sequence[Waiting]) -> list[Any]:
    """The model's inputs for these requests, in the model's order. The arrays cannot be written to."""
    first = members[0]
    plans = first.key.plans
    if len(members) == 1:
        return [_alone(plan, first) for plan in plans]
    rows = sum([one.rows for one in members])
    return [_together(plan, members, rows) for plan in plans]


def check_rows(members: Sequence[Waiting], outputs: Arrays) -> None:
    """Every output of a batch has the rows of all its members, or they cannot be told apart."""
    rows = sum([one.rows for one in members])
    for output in outputs:
        if output.shape[:1] != (rows,):
            raise Misfit("the model's outputs have not the rows of its inputs")


def cut(output: Any, start: int, end: int) -> tuple[tuple[int, ...], Any]:
    """Rows `start` to `end` of an output, all where `end` is 0: their shape, and the rows."""
    part = output[start:end] if end else output
    if part.dtype == object:
        return part.shape, part.ravel().tolist()
    return part.shape, part


def _alone(plan: Plan, one: Waiting) -> Any:
    given = one.ask.inputs[plan.at]
    if not plan.dtype:
        return _texts(list(given.data), given.shape)
    if not given.data:
        return np.zeros(given.shape, plan.dtype)
    return np.frombuffer(given.data, plan.dtype).reshape(given.shape)  # type: ignore[arg-type]


def _together(plan: Plan, members: Sequence[Waiting], rows: int) -> Any:
    at = plan.at
    shape = (rows, *plan.trailing)
    if not plan.dtype:
        return _texts([text for one in members for text in one.ask.inputs[at].data], shape)
    joined = b"".join([one.ask.inputs[at].data for one in members])  # type: ignore[misc]
    return np.frombuffer(joined, plan.dtype).reshape(shape) if joined else np.zeros(shape, plan.dtype)


def _texts(found: list[Any], shape: tuple[int, ...]) -> Any:
    made = np.empty(len(found), object)
    made[:] = found
    return made.reshape(shape)
