"""What every protocol asks of a request: names that are few and different, and parameters that say how it is to be
run, which are understood, or refused, and never the model's to ignore.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.sheet import MOST_TENSORS
from falaj.oip.tensors import Ask

LONGEST_S = 86_400.0


def check_inputs(names: Sequence[str]) -> None:
    """Invalid unless there are some, not too many, and each once."""
    if not 0 < len(names) <= MOST_TENSORS:
        raise Invalid(f"a request of {len(names)} inputs", f"from 1 to {MOST_TENSORS}")
    if len(set(names)) < len(names):
        raise Invalid("two inputs have one name", "send each once")


def check_plain(name: str, parameters: Mapping[str, Any]) -> None:
    """Invalid where a tensor is to be found, or made, in a way that is not offered."""
    for one, value in parameters.items():
        if one.startswith("shared_memory") or (one == "classification" and value):
            raise Invalid(
                f"{one[:60].replace('_', ' ')} of {name[:60]!r} is not offered", "send and take whole tensors"
            )


def settle(ask: Ask, found: dict[str, Any]) -> None:
    """Puts `timeout` (microseconds), `priority` and `sequence_…` where the engine looks; the model gets the rest."""
    timeout_us, priority = found.pop("timeout", 0), found.pop("priority", 0)
    if type(timeout_us) is not int or timeout_us < 0:
        raise Invalid("timeout is no time", "in microseconds, a whole number")
    if timeout_us:
        ask.deadline = time.monotonic() + min(timeout_us / 1e6, LONGEST_S)
    if type(priority) is not int or not 0 <= priority < 1 << 32:
        raise Invalid("priority is no priority", "0 (ordinary), 1 (first), 2, …")
    ask.priority = priority
    if any(name.startswith("sequence_") for name in found):
        _sequence(ask, found)
    ask.parameters = found


def _sequence(ask: Ask, found: dict[str, Any]) -> None:
    sequence = found.pop("sequence_id", 0)
    if type(sequence) not in (int, str) or (type(sequence) is int and not 0 <= sequence < 1 << 64):
        raise Invalid("sequence_id is neither a number nor a text", "0 for none")
    begins, ends = found.pop("sequence_start", False), found.pop("sequence_end", False)
    if type(begins) is not bool or type(ends) is not bool:
        raise Invalid("sequence_start and sequence_end are true or false", "leave them out for false")
    if (begins or ends) and not sequence:
        raise Invalid("a sequence begins or ends, and which one is not said", "send sequence_id")
    unknown = next((name for name in found if name.startswith("sequence_")), None)
    if unknown:
        raise Invalid(f"{unknown[:60]!r} is no parameter of sequences", "sequence_id, sequence_start, sequence_end")
    ask.sequence, ask.sequence_start, ask.sequence_end = sequence, begins, ends
