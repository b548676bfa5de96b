"""The table of a server's services: each is made at first use and compared with the list of operations."""

from collections.abc import Iterator, Mapping
from threading import RLock
from typing import Any

from falaj.core.errors import CorruptData
from falaj.core.operation import list_operation_groups
from falaj.services import SERVICES, load_service_class


class ServiceTable(Mapping[str, Any]):
    """The services of a server, by name. One that is given as a function of its arguments is made at first use."""

    def __init__(self, service_sources: Mapping[str, Any]) -> None:
        self.service_sources = service_sources
        self._lock = RLock()
        self.open: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.open:
            with self._lock:
                if name not in self.open:
                    self.open[name] = self.create_service(name, self.service_sources[name])
        return self.open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.service_sources)

    def __len__(self) -> int:
        return len(self.service_sources)

    def create_service(self, name: str, service_source: Any) -> Any:
        service_class = load_service_class(name)
        # Policy decides by the list; a desk whose marks say something else would be judged by other rules than its own.
        if list_operation_groups(service_class) != SERVICES[name].groups:
            raise CorruptData(f"the desk {name} is not as the list of desks says", "install the package anew")
        return service_class(*service_source()) if callable(service_source) else service_source
