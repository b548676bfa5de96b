"""Answers: what verbs said for one look at a page, each asked once, though several parts of it want to know."""

from typing import Any

from falaj.console.view import Here
from falaj.core.errors import FalajError


class Answers:
    """`told.ask("jobs", "list", state="running")`: the answer, or the error, as often as one asks."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._known: dict[tuple[str, ...], Any] = {}

    def ask(self, desk: str, verb: str, /, *placed: Any, **named: Any) -> Any:
        """What the verb gives; raises again what it raised."""
        key = (desk, verb, *map(str, placed), str(sorted(named.items())))
        if key not in self._known:
            try:
                self._known[key] = getattr(getattr(self._here, desk), verb)(*placed, **named)
            except FalajError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, FalajError):
            raise found
        return found

    def seen(self, desk: str, verb: str, /, *placed: Any, **named: Any) -> Any:
        """The same, or None for whoever may not know."""
        try:
            return self.ask(desk, verb, *placed, **named)
        except FalajError:
            return None
