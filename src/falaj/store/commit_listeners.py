"""Who is woken by what: callbacks after a commit, of those who hear everything and of those who hear some kinds."""

from collections.abc import Callable, Iterable, Set


class CommitListeners:
    """Callbacks, which are quick and never raise. Threads share them: they are only ever added to."""

    def __init__(self) -> None:
        self._listeners: tuple[tuple[Set[str], Callable[[], None]], ...] = ()

    def hang(self, callback: Callable[[], None], kinds: Iterable[str]) -> bool:
        """One more, for these kinds or for everything; whether it is the first.

        A set of kinds is kept as it is: whoever changes it is told of what it says then.
        """
        watched_kinds = kinds if isinstance(kinds, Set) else frozenset(kinds)
        is_first, self._listeners = not self._listeners, (*self._listeners, (watched_kinds, callback))
        return is_first

    def ring(self, changed_kinds: Iterable[str] | None = None) -> None:
        """There is something new; where `changed_kinds` says of what, only who hears that is told."""
        changed_set = None if changed_kinds is None else frozenset(changed_kinds)
        for watched_kinds, callback in self._listeners:
            if changed_set is None or not watched_kinds or watched_kinds & changed_set:
                callback()

    def nudge(self, topic: str) -> None:
        """Wake who hears this word as if it were a kind, and nobody else: nothing was committed."""
        for watched_kinds, callback in self._listeners:
            if topic in watched_kinds:
                callback()
