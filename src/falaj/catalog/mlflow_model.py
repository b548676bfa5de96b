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

from falaj.catalog.publish_limits import MAX_CARD_ENTRIES, MAX_WORD

MAX_FILE_BYTES = 512 << 10
SIGNATURE_SIDES = ("inputs", "outputs", "params")
_REQUIREMENT_PATTERN = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*={2,3}\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*(?:[;#]|$)"
)


def read_mlmodel(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The signature and the environment of the model in `folder`; empty where it says nothing of them."""
    model_nodes = _parse_yaml_nodes(_read_small_text(folder / "MLmodel"))
    signature = {
        side: side_schema
        for side in SIGNATURE_SIDES
        if (side_schema := _decode_json(_find_text_node(model_nodes, "signature", side))) is not None
    }
    python_version = _find_text_node(model_nodes, "flavors", "python_function", "python_version")
    pinned_packages = [
        pin_match.groups()
        for line in _read_small_text(folder / "requirements.txt").splitlines()
        if (pin_match := _REQUIREMENT_PATTERN.match(line))
    ]
    packages = {
        name.lower(): release
        for name, release in islice(pinned_packages, MAX_CARD_ENTRIES - 1)
        if len(name) <= MAX_WORD
    }
    return signature, {**({"python": python_version[:MAX_WORD]} if isinstance(python_version, str) else {}), **packages}


def _read_small_text(file: Path) -> str:
    if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
        return ""
    with suppress(UnicodeDecodeError):
        return file.read_text("utf-8")
    return ""


def _parse_yaml_nodes(text: str) -> Mapping[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        return {}  # falaj[exchange] brings it
    # Never the loader in C: it recurses without a limit, and a deep document ends the process.
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        return _read_mapping_node(yaml.compose(text, Loader=yaml.SafeLoader))
    return {}


def _read_mapping_node(node: Any) -> Mapping[str, Any]:
    """A mapping of nodes by text; empty where the node is none."""
    pairs = node.value if getattr(node, "id", "") == "mapping" else ()
    return {key.value: value for key, value in pairs if isinstance(key.value, str)}


def _find_text_node(nodes: Mapping[str, Any], *path: str) -> str | None:
    """The text at the end of a path of names, where there is one."""
    *parent_names, last_name = path
    for name in parent_names:
        nodes = _read_mapping_node(nodes.get(name))
    text = getattr(nodes.get(last_name), "value", None)
    return text if isinstance(text, str) else None


def _decode_json(text: str | None) -> Any:
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return msgspec.json.decode(text) if text else None
    return None
