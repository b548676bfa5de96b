"""Kinds of nodes as an operator writes them, for clusters that can make nodes and do not say what those will be.

    kinds=gpu:cpus=16000,memory=65536,gpus=8,model=A100,most=4,price=3000000,boot_s=300;cpu:cpus=8000,memory=16384,most=9

Amounts are milli-CPU and MiB. Every other word is a label of the kind: most (needed), least, price, spot, hazard,
boot_s, notice_s, rack, …; `resource.NAME=4` is an amount that nodes count under that name.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from falaj.core.errors import Invalid
from falaj.core.executor import Device, NodeInfo

_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NUMERIC_FIELDS = ("cpus", "memory", "gpus", "gpu_memory", "most", "least", "price", "hazard", "boot_s", "notice_s")
_AMOUNT_PREFIX = "resource."
_MAX_DIGITS, _MAX_GPUS = 15, 1024
_DEVICE_FIELDS = ("cpus", "memory", "gpus", "gpu_memory", "model")


def read_node_kinds(text: str) -> dict[str, NodeInfo]:
    """The kinds by name."""
    kinds = {}
    for kind_text in text.split(";") if text else ():
        name, _, fields_text = kind_text.strip().partition(":")
        fields = {
            key.strip(): value.strip()
            for key, _, value in (field_text.partition("=") for field_text in fields_text.split(","))
        }
        numbers = [value for key, value in fields.items() if key in _NUMERIC_FIELDS or key.startswith(_AMOUNT_PREFIX)]
        if (
            not _NAME_PATTERN.fullmatch(name)
            or not {"cpus", "most"} <= fields.keys()
            or not all(map(_is_number, numbers))
        ):
            raise Invalid(
                f"{kind_text[:80]!r} is no kind of node", "for example gpu:cpus=16000,memory=65536,gpus=8,most=4"
            )
        if int(fields.get("gpus", "0")) > _MAX_GPUS:
            raise Invalid(f"{kind_text[:80]!r} has too many GPUs", f"a node has at most {_MAX_GPUS}")
        kinds[name] = _make_node_info(name, fields)
    return kinds


def _is_number(text: str) -> bool:
    """A plain number that no machine exceeds; there are digits that `int` does not read, and numbers without end."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def add_kind_labels(node_info: NodeInfo, kinds: Mapping[str, NodeInfo], name: str) -> NodeInfo:
    """A node with the labels of its kind; what it says of itself counts for more."""
    kind = kinds.get(name)
    return (
        node_info if kind is None else replace(node_info, labels={**kind.labels, **node_info.labels, "template": name})
    )


def _make_node_info(name: str, fields: Mapping[str, str]) -> NodeInfo:
    amounts = {"cpu": int(fields["cpus"]), "memory": int(fields.get("memory", "0"))}
    amounts |= {
        key.removeprefix(_AMOUNT_PREFIX): int(value) for key, value in fields.items() if key.startswith(_AMOUNT_PREFIX)
    }
    model, memory = fields.get("model", "gpu"), int(fields.get("gpu_memory", "0"))
    devices = tuple(Device(index, model, memory) for index in range(int(fields.get("gpus", "0"))))
    labels = {
        key: value for key, value in fields.items() if key not in _DEVICE_FIELDS and not key.startswith(_AMOUNT_PREFIX)
    }
    return NodeInfo(name, amounts, devices, {**labels, "template": name})
