"""Who is woken by what: callbacks after a commit, of those who hear everything and of those who hear some kinds."""

from collections.abc import Callable, Iterable, Set


class Bells:
    """Callbacks, which are quick and never raise. Threads share them: they are only ever added to."""

    def __init__(self) -> None:
        self._hung: tuple[tuple[Set[str], Callable[[], None]], ...] = ()

    def hang(self, callback: Callable[[], None], kinds: Iterable[str]) -> bool:
        """One more, for these kinds or for everything; whether it is the first.

        A set of kinds is kept as it is: whoever changes it is told of what it says then.
        """
        heard = kinds if isinstance(kinds, Set) else frozenset(kinds)
        first, self._hung = not self._hung, (*self._hung, (heard, callback))
        return first

    def ring(self, kinds: Iterable[str] | None = None) -> None:
        """There is something new; where `kinds` says of what, only who hears that is told."""
        about = None if kinds is None else frozenset(kinds)
        for heard, callback in self._hung:
            if about is None or not heard or heard & about:
                callback()

    def nudge(self, word: str) -> None:
        """Wake who hears this word as if it were a kind, and nobody else: nothing was committed."""
        for heard, callback in self._hung:
            if word in heard:
                callback()
