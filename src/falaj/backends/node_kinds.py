"""Kinds of nodes as an operator writes them, for clusters that can make nodes and do not say what those will be.

    kinds=gpu:cpus=16000,memory=65536,gpus=8,model=A100,most=4,price=3000000,boot_s=300;cpu:cpus=8000,memory=16384,most=9

Amounts are milli-CPU and MiB. Every other word is a label of the kind: most (needed), least, price, spot, hazard,
boot_s, notice_s, rack, …; `resource.NAME=4` is an amount that nodes count under that name.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from falaj.core.errors import Invalid
from falaj.core.execute import Device, NodeFacts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NUMBERS = ("cpus", "memory", "gpus", "gpu_memory", "most", "least", "price", "hazard", "boot_s", "notice_s")
_AMOUNT = "resource."
_MOST_DIGITS, _MOST_GPUS = 15, 1024
_DEVICE = ("cpus", "memory", "gpus", "gpu_memory", "model")


def read_kinds(text: str) -> dict[str, NodeFacts]:
    """The kinds by name."""
    found = {}
    for part in text.split(";") if text else ():
        name, _, rest = part.strip().partition(":")
        words = {key.strip(): value.strip() for key, _, value in (word.partition("=") for word in rest.split(","))}
        numbers = [value for key, value in words.items() if key in _NUMBERS or key.startswith(_AMOUNT)]
        if not _NAME.fullmatch(name) or not {"cpus", "most"} <= words.keys() or not all(map(_counts, numbers)):
            raise Invalid(f"{part[:80]!r} is no kind of node", "for example gpu:cpus=16000,memory=65536,gpus=8,most=4")
        if int(words.get("gpus", "0")) > _MOST_GPUS:
            raise Invalid(f"{part[:80]!r} has too many GPUs", f"a node has at most {_MOST_GPUS}")
        found[name] = _facts(name, words)
    return found


def _counts(text: str) -> bool:
    """A plain number that no machine exceeds; there are digits that `int` does not read, and numbers without end."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def with_kind(facts: NodeFacts, kinds: Mapping[str, NodeFacts], name: str) -> NodeFacts:
    """A node with the labels of its kind; what it says of itself counts for more."""
    known = kinds.get(name)
    return facts if known is None else replace(facts, labels={**known.labels, **facts.labels, "template": name})


def _facts(name: str, words: Mapping[str, str]) -> NodeFacts:
    amounts = {"cpu": int(words["cpus"]), "memory": int(words.get("memory", "0"))}
    amounts |= {key.removeprefix(_AMOUNT): int(value) for key, value in words.items() if key.startswith(_AMOUNT)}
    model, memory = words.get("model", "gpu"), int(words.get("gpu_memory", "0"))
    devices = tuple(Device(index, model, memory) for index in range(int(words.get("gpus", "0"))))
    labels = {key: value for key, value in words.items() if key not in _DEVICE and not key.startswith(_AMOUNT)}
    return NodeFacts(name, amounts, devices, {**labels, "template": name})
