"""What an MLflow model says of itself: inputs and outputs in its `MLmodel`, packages in its `requirements.txt`.

Both come from strangers. Nothing is made of what they say but texts: YAML is read as far as its nodes, so that neither
its tags nor its references do anything, and what cannot be read is not there.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from falaj.catalog.limits import MOST_ENTRIES, WORD

MOST_BYTES = 512 << 10
SIDES = ("inputs", "outputs", "params")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*={2,3}\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*(?:[;#]|$)")


def read_mlmodel(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The signature and the environment of the model in `folder`; empty where it says nothing of them."""
    told = _yaml(_text(folder / "MLmodel"))
    signature = {side: shape for side in SIDES if (shape := _json(_part(told, "signature", side))) is not None}
    python = _part(told, "flavors", "python_function", "python_version")
    pins = [found.groups() for line in _text(folder / "requirements.txt").splitlines() if (found := _PIN.match(line))]
    packages = {name.lower(): release for name, release in islice(pins, MOST_ENTRIES - 1) if len(name) <= WORD}
    return signature, {**({"python": python[:WORD]} if isinstance(python, str) else {}), **packages}


def _text(file: Path) -> str:
    if file.is_symlink() or not file.is_file() or file.stat().st_size > MOST_BYTES:
        return ""
    with suppress(UnicodeDecodeError):
        return file.read_text("utf-8")
    return ""


def _yaml(text: str) -> Mapping[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        return {}  # falaj[exchange] brings it
    # Never the loader in C: it recurses without a limit, and a deep document ends the process.
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        return _pairs(yaml.compose(text, Loader=yaml.SafeLoader))
    return {}


def _pairs(node: Any) -> Mapping[str, Any]:
    """A mapping of nodes by text; empty where the node is none."""
    pairs = node.value if getattr(node, "id", "") == "mapping" else ()
    return {key.value: value for key, value in pairs if isinstance(key.value, str)}


def _part(told: Mapping[str, Any], *path: str) -> str | None:
    """The text at the end of a path of names, where there is one."""
    *folders, last = path
    for name in folders:
        told = _pairs(told.get(name))
    text = getattr(told.get(last), "value", None)
    return text if isinstance(text, str) else None


def _json(text: str | None) -> Any:
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return msgspec.json.decode(text) if text else None
    return None
