"""What can be proved: the Merkle log over the events, checkpoints, proofs, evidence packs, witnesses, lineage.

What does not live here: who may look (govern), the events themselves (store). Names here load on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from falaj.audit.log_sealing import LogSealer
    from falaj.audit.service import AuditService, verify_pack
    from falaj.audit.witness import CheckpointWitness

__all__ = ["AuditService", "CheckpointWitness", "LogSealer", "verify_pack"]

_HOMES = {
    "AuditService": "service",
    "verify_pack": "service",
    "LogSealer": "log_sealing",
    "CheckpointWitness": "witness",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'falaj.audit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"falaj.audit.{_HOMES[name]}"), name)
