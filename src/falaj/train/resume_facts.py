"""What must be as it was for a resumed run to be the same run."""

from collections.abc import Mapping
from typing import Any

import torch

from falaj.core.errors import Invalid
from falaj.feed.batch_plan import BatchPlan
from falaj.train.options import Options

_ORDER_FACTS = ("seed", "batch", "samples", "shuffle")
_STRICT_FACTS = (*_ORDER_FACTS, "micro", "threads")


def collect_facts(options: Options, plan: BatchPlan | None) -> dict[str, Any]:
    """Those of this run."""
    run_facts: dict[str, Any] = {"reproducible": options.reproducible, "seed": options.seed}
    if options.reproducible == "strict" and not torch.cuda.is_available():
        run_facts["threads"] = torch.get_num_threads()
    if plan is not None:
        run_facts |= {name: getattr(plan, name) for name in ("batch", "micro", "samples", "shuffle")}
    return run_facts


def check_same_facts(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse to go on when the order of samples, or under strict the bits, would be others than they were."""
    level = current["reproducible"]
    if level == "strict" and saved.get("reproducible", level) != level:
        raise Invalid(
            f"the checkpoint was made with reproducible={saved['reproducible']!r}, this run says 'strict'",
            "its bits are not to be had again: begin anew in another folder, or go on with the same level",
        )
    for name in {"off": (), "order": _ORDER_FACTS, "strict": _STRICT_FACTS}[level]:
        if name in saved and name in current and saved[name] != current[name]:
            lower = "off" if name in _ORDER_FACTS else "order"
            raise Invalid(
                f"the checkpoint was made with {name}={saved[name]}, this run has {name}={current[name]}",
                f"set it back, begin anew in another folder, or say reproducible={lower!r}",
            )
