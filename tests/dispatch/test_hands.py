"""Hands: what is handed over is done, whatever becomes of what was handed over with it."""

import threading

from falaj.dispatch.io_pool import MAX_BATCH, IoPool


def test_one_that_breaks_takes_nobody_along() -> None:
    done, over, hands = list[int](), threading.Event(), IoPool(1)

    def broken() -> None:
        raise KeyError("a bug")

    works = [broken, *(lambda number=number: done.append(number) for number in range(2 * MAX_BATCH))]
    hands.do_all(works)
    hands.do(over.set)
    assert over.wait(20)
    assert done == list(range(2 * MAX_BATCH))
    hands.close()
