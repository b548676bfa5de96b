"""A replica: a process that works with the store, as it says of itself to the others. The text is a lease's owner."""

from falaj.core.data import dataclass

LEASE_PREFIX = "replica:"
"""Replicas hold leases of these names, one each."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """Who it is, which version, and which schema of the store that version knows."""

    id: str
    version: str
    schema: int
    role: str
    """api or gateway."""
    since: float
    at: str
    """Where it answers."""

    def encode(self) -> str:
        """As the owner of its lease."""
        return f"{self.id} {self.version} {self.schema} {self.role} {self.since:.0f} {self.at}"

    @staticmethod
    def decode(text: str) -> "ReplicaInfo":
        """What another wrote. One whose text has another form knows a schema that we cannot name: none."""
        parts = text.split(" ", 5)
        if len(parts) != 6 or not (parts[2].isdecimal() and parts[4].isdecimal()):
            return ReplicaInfo(text[:80], "unknown", 0, "unknown", 0.0, "")
        return ReplicaInfo(parts[0], parts[1], int(parts[2]), parts[3], float(parts[4]), parts[5])
