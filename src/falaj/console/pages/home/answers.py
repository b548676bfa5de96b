"""Answers: what verbs said for one look at a page, each asked once, though several parts of it want to know."""

from typing import Any

from falaj.console.page_view import RecordingClient
from falaj.core.errors import FalajError


class CachedAnswers:
    """`told.ask("jobs", "list", state="running")`: the answer, or the error, as often as one asks."""

    def __init__(self, client: RecordingClient) -> None:
        self._client = client
        self._answers: dict[tuple[str, ...], Any] = {}

    def ask(self, service_name: str, operation_name: str, /, *arguments: Any, **options: Any) -> Any:
        """What the verb gives; raises again what it raised."""
        key = (service_name, operation_name, *map(str, arguments), str(sorted(options.items())))
        if key not in self._answers:
            try:
                self._answers[key] = getattr(getattr(self._client, service_name), operation_name)(*arguments, **options)
            except FalajError as error:
                self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, FalajError):
            raise answer
        return answer

    def seen(self, service_name: str, operation_name: str, /, *arguments: Any, **options: Any) -> Any:
        """The same, or None for whoever may not know."""
        try:
            return self.ask(service_name, operation_name, *arguments, **options)
        except FalajError:
            return None
