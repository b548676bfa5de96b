"""What a script itself says about how it is to be run: the framework it imports, and what autotune found for it."""

import json
import re
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid

TUNED = "falaj-train.json"
"""Beside a script: how `falaj train autotune` found that it runs fastest."""
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+(.*))?", re.MULTILINE)
_MOST_BYTES = 1 << 20
_FRAMEWORKS = {
    "torch": "torch", "lightning": "torch", "accelerate": "torch", "transformers": "torch", "falaj.train": "torch",
    "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax", "flax": "jax",
    "horovod": "horovod", "mpi4py": "mpi",
}  # fmt: skip


def told_by(script: Path, words: dict[str, Any]) -> dict[str, Any]:
    """The words of a job with what its script says where the words are silent."""
    found = dict(words)
    if not found.get("framework") and (framework := framework_of(script)):
        found["framework"] = framework
    tuned = script.parent / TUNED
    known = dict(found.get("env") or {})
    if "FALAJ_TRAIN" not in known and tuned.is_file():
        found["env"] = {**known, "FALAJ_TRAIN": _options(tuned, script.name)}
        if found["env"]["FALAJ_TRAIN"] == "{}":
            found["env"] = known
    return found


def framework_of(script: Path) -> str:
    """The framework whose processes must meet, by what the script imports; nothing when it imports none."""
    text = script.read_bytes()[:_MOST_BYTES].decode(errors="replace")
    imports = _IMPORTS.findall(text)
    named = {module for module, _ in imports}
    named |= {f"{module}.{name.strip()}" for module, names in imports for name in names.split(",")}
    found = [framework for name, framework in _FRAMEWORKS.items() if any(_within(one, name) for one in named)]
    # A script of Horovod imports torch or TensorFlow, too.
    return next((one for one in ("horovod", "mpi") if one in found), found[0] if found else "")


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _options(path: Path, script: str) -> str:
    """The options for this script, as one line of JSON; other scripts of the folder have theirs."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return json.dumps(known.get(script, {}))
    except (OSError, ValueError, AttributeError):
        raise Invalid(
            f"{path.name} cannot be read", "falaj train autotune writes it; remove it or tune again"
        ) from None
