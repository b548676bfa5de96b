"""What must be as it was for a resumed run to be the same run."""

from collections.abc import Mapping
from typing import Any

import torch

from falaj.core.errors import Invalid
from falaj.feed.plan import Plan
from falaj.train.options import Options

_ORDER = ("seed", "batch", "samples", "shuffle")
_STRICT = (*_ORDER, "micro", "threads")


def facts(options: Options, plan: Plan | None) -> dict[str, Any]:
    """Those of this run."""
    known: dict[str, Any] = {"reproducible": options.reproducible, "seed": options.seed}
    if options.reproducible == "strict" and not torch.cuda.is_available():
        known["threads"] = torch.get_num_threads()
    if plan is not None:
        known |= {name: getattr(plan, name) for name in ("batch", "micro", "samples", "shuffle")}
    return known


def same(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on when the order of samples, or under strict the bits, would be others than they were."""
    level = now["reproducible"]
    if level == "strict" and saved.get("reproducible", level) != level:
        raise Invalid(
            f"the checkpoint was made with reproducible={saved['reproducible']!r}, this run says 'strict'",
            "its bits are not to be had again: begin anew in another folder, or go on with the same level",
        )
    for name in {"off": (), "order": _ORDER, "strict": _STRICT}[level]:
        if name in saved and name in now and saved[name] != now[name]:
            lower = "off" if name in _ORDER else "order"
            raise Invalid(
                f"the checkpoint was made with {name}={saved[name]}, this run has {name}={now[name]}",
                f"set it back, begin anew in another folder, or say reproducible={lower!r}",
            )
