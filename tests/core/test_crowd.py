"""One for all: those who wait are served together, each hears its own outcome, and none hears good news in error."""

import threading
from collections.abc import Sequence

from falaj.core.coalescer import WriteCoalescer
from falaj.core.errors import FalajError, Invalid, Unavailable


class Work:
    """Notes what is done together; holds the first who comes until told, and then fails as told."""

    def __init__(self) -> None:
        self.done: list[list[str]] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.broken: type[BaseException] | None = None
        self.all = WriteCoalescer(self._do)
        self.heard: dict[str, BaseException | None] = {}

    def _do(self, some: Sequence[str]) -> Sequence[FalajError | None]:
        self.done.append(sorted(some))
        if "first" in some:
            self.entered.set()
            assert self.go_on.wait(20)
        elif self.broken is not None:
            raise self.broken("it broke")
        return [Invalid("that is bad", "say another thing") if one == "bad" else None for one in some]

    def ask(self, what: str) -> None:
        try:
            self.all.do(what)
            self.heard[what] = None
        except (FalajError, ZeroDivisionError) as error:
            self.heard[what] = error

    def story(self) -> None:
        """One works, and three come meanwhile."""
        first = threading.Thread(target=self.ask, args=("first",))
        others = [threading.Thread(target=self.ask, args=(what,)) for what in ("good", "bad", "fine")]
        first.start()
        assert self.entered.wait(20)
        for thread in others:
            thread.start()
        while len(self.all._pending) < len(others):
            others[0].join(0.001)
        self.go_on.set()
        for thread in (first, *others):
            thread.join(20)


def test_who_comes_meanwhile_is_served_together_and_hears_their_own_outcome() -> None:
    work = Work()
    work.story()
    assert work.done == [["first"], ["bad", "fine", "good"]]
    assert {what for what, error in work.heard.items() if error is None} == {"first", "good", "fine"}
    assert isinstance(work.heard["bad"], Invalid)
    work.all.do("later")
    assert work.done[-1] == ["later"]


def test_what_broke_in_the_midst_is_good_news_for_nobody() -> None:
    work = Work()
    work.broken = ZeroDivisionError
    work.story()
    kinds = sorted(type(work.heard[what]).__name__ for what in ("bad", "fine", "good"))
    assert kinds == [Unavailable.__name__] * 2 + [ZeroDivisionError.__name__]
