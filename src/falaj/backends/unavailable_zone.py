"""`left:ae-dubai`: bytes that stayed in a zone when the house was brought back in another. Nothing of them is here."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from falaj.core.errors import Unavailable
from falaj.core.ports import ObjectStat, RemoteZoneObjectsBase, split_backend_url


class UnavailableZoneObjects(RemoteZoneObjectsBase):
    """The store of such a zone: it says so to whoever reads or writes."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        del options
        self._zone = split_backend_url(url)[1].strip("/")

    def refusal(self) -> Unavailable:
        """Why nothing of it can be read, and what would change that."""
        return Unavailable(
            f"these bytes stayed in zone {self._zone}: they were not in the backup that this house was restored from",
            f"once their store answers: falaj zones change {self._zone} --more store=… then copy what may leave it",
        )

    def look(self, inspection: Mapping[str, Any]) -> Any:
        """Not here."""
        raise self.refusal()

    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]:
        """Nobody can say."""
        raise self.refusal()

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Nobody can say."""
        raise self.refusal()

    def delete(self, key: str) -> None:
        """Not here."""
        raise self.refusal()

    def close(self) -> None:
        """Nothing is open."""
