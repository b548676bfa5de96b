"""The kinds of what can look wrong, and what to do about each."""

from collections.abc import Mapping

from falaj.core.data import dataclass

IDLE, LEAK, HEAT, FAULT, STRAGGLER, STARVED, DISK = (
    "gpu-idle", "memory-leak", "gpu-hot", "gpu-fault", "straggler", "gpu-starved", "disk-full"
)  # fmt: skip
ADVICE: Mapping[str, str] = {
    IDLE: "end the job if it is not needed, or ask for fewer GPUs",
    LEAK: "look for what grows; save a checkpoint soon, and restart from it before the limit",
    HEAT: "look at fans and airflow; drain the node if it stays hot",
    FAULT: "drain the node, reset the device, run its vendor's diagnosis",
    STRAGGLER: "compare its node with the others'; move the job, or drain that node",
    STARVED: "ask for more CPUs, or more loader processes: the GPU waits for data",
    DISK: "remove what is not needed there: old attempts, caches, checkpoints",
}


@dataclass(frozen=True, slots=True)
class AlertSignal:
    """Something looks wrong, or looks right again."""

    kind: str
    part: str
    """Which of its parts: a device, a slot, a rank; empty for the whole."""
    opens: bool
    since: float
    text: str = ""
