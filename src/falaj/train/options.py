"""How a training runs, as data: said by the script, and over that by whoever starts it (FALAJ_TRAIN, a JSON object)."""

import json
import os
from dataclasses import dataclass, fields, replace
from typing import Any

from falaj.core.errors import Invalid

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "bf16-autocast", "bf16-pure", "fp16", "fp8")
REPRODUCIBILITY_LEVELS = ("off", "order", "strict")


@dataclass(frozen=True, slots=True)
class Options:
    """Everything about a training that is not the model, the data or the loss."""

    seed: int = 0
    micro: int = 0
    """The samples one process works on at a time; 0: as many as its share, or what autotune found."""
    precision: str = "auto"
    parallel: str | dict[str, int] = "auto"
    """none, ddp, fsdp, hsdp, or sizes of data, shard, tensor and pipeline."""
    compile: bool | str = False
    """True, or a mode of torch.compile."""
    activation: str | float = "none"
    """What is computed again to save memory: none, blocks, or a budget of 0..1 that the compiler keeps to."""
    reproducible: str = "order"
    """off; order: the same samples in the same order whatever the world; strict: the same bits, too."""
    save_s: float = 120.0
    """A checkpoint so often, in seconds; 0: only when asked."""
    save_steps: int = 0
    keep: int = 3
    """So many checkpoints stay, the newest ones; and for good those of every so many steps."""
    keep_every: int = 0
    ema: float = 0.0
    hang_s: float = 600.0
    """A step that takes longer is a hang: stacks are written down and the attempt is tried again."""
    random: bool = False
    """Python's and numpy's own random numbers are keyed, too, for code that draws from them."""
    ahead: int = 0
    """Micro-batches read ahead; 0: as the feed thinks best."""
    workers: int = 0
    """Processes that transform samples; 0: threads do."""
    threads: int = 0
    """Of a process on CPUs; 0: as the machine and the job say."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise Invalid(f"there is no precision {self.precision!r}", f"one of {', '.join(PRECISIONS)}")
        if self.reproducible not in REPRODUCIBILITY_LEVELS:
            raise Invalid(
                f"reproducible={self.reproducible!r} is not a level", f"one of {', '.join(REPRODUCIBILITY_LEVELS)}"
            )

    def said(self, text: str = "") -> "Options":
        """With what whoever started us says, which stands above the script."""
        text = text or os.environ.get("FALAJ_TRAIN", "")
        if not text:
            return self
        try:
            overrides: Any = json.loads(text)
        except ValueError:
            raise Invalid("FALAJ_TRAIN is not JSON", "autotune writes it; or remove it") from None
        field_names = {field.name for field in fields(self)}
        if not isinstance(overrides, dict):
            raise Invalid("FALAJ_TRAIN is no JSON object", "autotune writes it; or remove it")
        if unknown := sorted(set(overrides) - field_names):
            raise Invalid(f"there is no option {', '.join(unknown)}", f"there are: {', '.join(sorted(field_names))}")
        return replace(self, **overrides)
