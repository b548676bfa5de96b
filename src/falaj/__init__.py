"""Falaj: one program that schedules, trains, versions, serves and proves. Names here load on first use."""

TYPE_CHECKING = False  # as `typing` has it, which every start would wait for
if TYPE_CHECKING:
    from typing import Any

    from falaj.core.errors import FalajError
    from falaj.core.flow_definition import flow, step
    from falaj.core.ref import Ref
    from falaj.server import connect

__version__ = "0.1.0"
__all__ = ["FalajError", "Ref", "connect", "flow", "step"]

_HOMES = {
    "connect": "falaj.server", "Ref": "falaj.core.ref", "FalajError": "falaj.core.errors",
    "flow": "falaj.core.flow_definition", "step": "falaj.core.flow_definition",
}  # fmt: skip


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'falaj' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
