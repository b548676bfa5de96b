"""What an attempt knows: the document that the platform writes and the launchers and processes of the attempt read.

Named tuples, not dataclasses: a launcher starts for every slot of every attempt, and those would double its start.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from falaj.core.errors import Invalid

if TYPE_CHECKING:
    from falaj.core.executor import Attempt

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
FOLDER_PLACEHOLDER = "{folder}"
"""Stands for the slot's own folder in the words of `stage` and `after`: it is not known before the launcher runs."""
FRAMEWORKS = ("plain", "torch", "tensorflow", "jax", "mpi", "horovod")


class SlotSpec(NamedTuple):
    """One slot of the attempt: which node, how many processes, which devices."""

    slot: int
    node: str = ""
    role: str = "worker"
    processes: int = 1
    devices: tuple[int, ...] = ()
    milli: int = 1000
    cpus: int = 0
    """Milli-CPU; 0 when nobody said."""
    host: str = ""
    """Where other slots reach it; when empty, the node's name, or the rendezvous' host if that is this machine."""
    cores: tuple[int, ...] = ()
    """The cores its processes keep to; all when empty."""
    memory_mib: int = 0
    """The memory it asked for; 0 when nobody said."""


class AttemptContext(NamedTuple):
    """The document. Paths are of the node; commands are lists of words."""

    attempt: str
    command: tuple[str, ...]
    slots: tuple[SlotSpec, ...]
    job: str = ""
    run: str = ""
    project: str = ""
    tenant: str = ""
    number: int = 1
    kind: str = "job"
    """What the attempt is (core.execute.ATTEMPT_KINDS); the command of one that is no job is the platform's."""
    framework: str = "plain"
    host: str = ""
    """Where rank 0 waits for the others; when empty, the executor tells it in FALAJ_HOST."""
    port: int = 0
    folder: str = ""
    code: str = ""
    env: Mapping[str, str] = _NO_VARIABLES
    inputs: Mapping[str, str] = _NO_VARIABLES
    outputs: Mapping[str, str] = _NO_VARIABLES
    checkpoints: str = ""
    stage: tuple[tuple[str, ...], ...] = ()
    """Commands every slot runs before the processes begin: words after the interpreter (worker/own_commands.py)."""
    after: tuple[tuple[str, ...], ...] = ()
    """Commands slot 0 runs after its processes succeeded."""
    outbox: str = ""
    address: str = ""
    """The platform's address, where its launchers carry the outbox themselves."""
    token_file: str = ""
    grace_s: float = 30.0
    limit_s: float = 0.0
    telemetry_s: float = 5.0
    bundle: str = ""
    """A zip application with which processes can `from falaj import worker` in any Python."""
    cage: Mapping[str, Any] = MappingProxyType({})
    """How its processes are kept apart (worker/sandbox.py); empty: not at all."""
    bounds: Mapping[str, int] = MappingProxyType({})
    """What the launcher itself enforces (worker/resource_watch.py): memory (1 or 0), disk_mib, log_mib."""
    own_sandbox: Mapping[str, Any] = MappingProxyType({})
    """The same for the launcher's own commands (`stage`, `after`)."""

    def placed(self, folder: str) -> "AttemptContext":
        """The same with paths that are not whole below this folder, the slot's own."""
        code = self.code and os.path.join(folder, self.code)  # noqa: PTH118 - pathlib takes longer, for every slot
        inputs, outputs = (
            {name: os.path.join(folder, path) for name, path in paths.items()}  # noqa: PTH118
            for paths in (self.inputs, self.outputs)
        )
        return self._replace(folder=folder, code=code, inputs=inputs, outputs=outputs)

    @property
    def world(self) -> int:
        """How many processes there are in all."""
        return sum(slot.processes for slot in self.slots)

    def first_rank(self, slot: int) -> int:
        """The rank of a slot's first process."""
        return sum(slot_spec.processes for slot_spec in self.slots[:slot])


def build_document(attempt: "Attempt", **extra_fields: object) -> dict[str, object]:
    """The document of an attempt as plain JSON values; `extra_fields` are fields of Context, and `rendezvous`."""
    slots = [
        {
            "index": slot.index,
            "node": slot.node,
            "role": slot.role,
            "processes": slot.processes,
            "devices": list(slot.devices),
            "milli": slot.milli,
            "cpus": slot.amounts.get("cpu", 0),
            "memory_mib": slot.amounts.get("memory", 0),
        }
        for slot in attempt.slots
    ]
    attempt_fields: dict[str, object] = {
        "attempt": attempt.id,
        "job": attempt.job,
        "project": attempt.project,
        "tenant": attempt.tenant,
        "slots": slots,
        "framework": attempt.framework,
        "command": list(attempt.command),
        "kind": attempt.kind,
        "folder": attempt.folder,
        "env": dict(attempt.env),
        "grace_s": attempt.grace_s,
        "limit_s": attempt.limit_s,
    }
    context_document = attempt_fields | extra_fields
    parse_context(context_document)
    return context_document


def read_context(path: str = "") -> AttemptContext:
    """The context in a file, or in FALAJ_CONTEXT where an executor shares no folder with its nodes."""
    text = os.environ.get("FALAJ_CONTEXT", "")
    try:
        if path and path != "-":
            text = Path(path).read_text(encoding="utf-8")
        return parse_context(json.loads(text))
    except (OSError, ValueError) as error:
        raise Invalid(
            f"the context of the attempt cannot be read: {error}", "the platform writes it; try again"
        ) from None


def parse_context(document: Mapping[str, Any]) -> AttemptContext:
    """A document as a Context; fields it does not know are left alone, so that an older launcher reads a newer one."""
    try:
        fields = {name: document[name] for name in AttemptContext._fields if name in document}
        rendezvous = document.get("rendezvous") or {}
        fields["host"] = str(rendezvous.get("host", ""))
        fields["port"] = int(rendezvous.get("port", 0))
        fields["command"] = tuple(map(str, document["command"]))
        fields["slots"] = tuple(_parse_slot(slot) for slot in document["slots"])
        for name in ("stage", "after"):
            fields[name] = tuple(tuple(map(str, command_words)) for command_words in document.get(name) or ())
        context = AttemptContext(**fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(
            f"this is no context of an attempt: {error!r}", "see worker/attempt_context.py for its fields"
        ) from None
    if context.framework not in FRAMEWORKS:
        raise Invalid(f"the framework {context.framework!r} is not known", f"one of {', '.join(FRAMEWORKS)}")
    if not context.command or [slot_spec.slot for slot_spec in context.slots] != list(range(len(context.slots))):
        raise Invalid("the context has no command, or slots out of order", "slots are numbered from 0 without gaps")
    if min((slot_spec.processes for slot_spec in context.slots), default=0) < 1:
        raise Invalid("a slot has no processes", "each has at least one")
    return context


def _parse_slot(slot: Mapping[str, Any]) -> SlotSpec:
    tuple_fields = {name: tuple(map(int, slot.get(name) or ())) for name in ("devices", "cores")}
    return SlotSpec(
        **{name: slot[name] for name in SlotSpec._fields if name in slot} | tuple_fields | {"slot": slot["index"]}
    )
