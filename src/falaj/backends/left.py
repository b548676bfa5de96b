"""`left:ae-dubai`: bytes that stayed in a zone when the house was brought back in another. Nothing of them is here."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from falaj.core.errors import Unavailable
from falaj.core.ports import Stat, open_url


class LeftBlobs:
    """The store of such a zone: it says so to whoever reads or writes."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        del options
        self._zone = open_url(url)[1].strip("/")

    def refusal(self) -> Unavailable:
        """Why nothing of it can be read, and what would change that."""
        return Unavailable(
            f"these bytes stayed in zone {self._zone}: they were not in the backup that this house was restored from",
            f"once their store answers: falaj zones change {self._zone} --more store=… then copy what may leave it",
        )

    def look(self, given: Mapping[str, Any]) -> Any:
        """Not here."""
        del given
        self._refuse()

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Not here."""
        del key, chunks
        self._refuse()

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Not here."""
        del key, start, stop
        self._refuse()

    def stat(self, keys: Iterable[str]) -> dict[str, Stat]:
        """Nobody can say."""
        del keys
        self._refuse()

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """Nobody can say."""
        del prefix
        self._refuse()

    def delete(self, key: str) -> None:
        """Not here."""
        del key
        self._refuse()

    def close(self) -> None:
        """Nothing is open."""

    def _refuse(self) -> NoReturn:
        raise self.refusal()
