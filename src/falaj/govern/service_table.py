"""The table of a server's services: each is made at first use and compared with the list of operations."""

from collections.abc import Iterator, Mapping
from threading import RLock
from typing import Any

from falaj.core.errors import Corrupt
from falaj.core.verb import groups_of
from falaj.desks import DESKS, desk_class


class ServiceTable(Mapping[str, Any]):
    """The services of a server, by name. One that is given as a function of its arguments is made at first use."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._lock = RLock()
        self.open: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.open:
            with self._lock:
                if name not in self.open:
                    self.open[name] = self._made(name, self._given[name])
        return self.open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def _made(self, name: str, given: Any) -> Any:
        service = desk_class(name)
        # Policy decides by the list; a desk whose marks say something else would be judged by other rules than its own.
        if groups_of(service) != DESKS[name].groups:
            raise Corrupt(f"the desk {name} is not as the list of desks says", "install the package anew")
        return service(*given()) if callable(given) else given
