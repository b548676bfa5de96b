"""What every protocol asks of a request: names that are few and different, and parameters that say how it is to be
run, which are understood, or refused, and never the model's to ignore.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.model_manifest import MAX_TENSORS
from falaj.oip.tensors import InferenceRequest

MAX_TIMEOUT_S = 86_400.0


def check_input_names(names: Sequence[str]) -> None:
    """Invalid unless there are some, not too many, and each once."""
    if not 0 < len(names) <= MAX_TENSORS:
        raise Invalid(f"a request of {len(names)} inputs", f"from 1 to {MAX_TENSORS}")
    if len(set(names)) < len(names):
        raise Invalid("two inputs have one name", "send each once")


def check_tensor_parameters(tensor_name: str, parameters: Mapping[str, Any]) -> None:
    """Invalid where a tensor is to be found, or made, in a way that is not offered."""
    for parameter, value in parameters.items():
        if parameter.startswith("shared_memory") or (parameter == "classification" and value):
            raise Invalid(
                f"{parameter[:60].replace('_', ' ')} of {tensor_name[:60]!r} is not offered",
                "send and take whole tensors",
            )


def apply_parameters(request: InferenceRequest, parameters: dict[str, Any]) -> None:
    """Puts `timeout` (microseconds), `priority` and `sequence_…` where the engine looks; the model gets the rest."""
    timeout_us, priority = parameters.pop("timeout", 0), parameters.pop("priority", 0)
    if type(timeout_us) is not int or timeout_us < 0:
        raise Invalid("timeout is no time", "in microseconds, a whole number")
    if timeout_us:
        request.deadline = time.monotonic() + min(timeout_us / 1e6, MAX_TIMEOUT_S)
    if type(priority) is not int or not 0 <= priority < 1 << 32:
        raise Invalid("priority is no priority", "0 (ordinary), 1 (first), 2, …")
    request.priority = priority
    if any(name.startswith("sequence_") for name in parameters):
        _apply_sequence(request, parameters)
    request.parameters = parameters


def _apply_sequence(request: InferenceRequest, parameters: dict[str, Any]) -> None:
    sequence_id = parameters.pop("sequence_id", 0)
    if type(sequence_id) not in (int, str) or (type(sequence_id) is int and not 0 <= sequence_id < 1 << 64):
        raise Invalid("sequence_id is neither a number nor a text", "0 for none")
    is_start, is_end = parameters.pop("sequence_start", False), parameters.pop("sequence_end", False)
    if type(is_start) is not bool or type(is_end) is not bool:
        raise Invalid("sequence_start and sequence_end are true or false", "leave them out for false")
    if (is_start or is_end) and not sequence_id:
        raise Invalid("a sequence begins or ends, and which one is not said", "send sequence_id")
    unknown_name = next((name for name in parameters if name.startswith("sequence_")), None)
    if unknown_name:
        raise Invalid(
            f"{unknown_name[:60]!r} is no parameter of sequences", "sequence_id, sequence_start, sequence_end"
        )
    request.sequence, request.sequence_start, request.sequence_end = sequence_id, is_start, is_end
