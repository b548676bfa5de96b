"""What can be proved: the Merkle log over the events, checkpoints, proofs, evidence packs, witnesses, lineage.

What does not live here: who may look (govern), the events themselves (store).
"""

from falaj.audit.seal import Sealer
from falaj.audit.service import Audit, verify_pack
from falaj.audit.witness import Witness

__all__ = ["Audit", "Sealer", "Witness", "verify_pack"]
