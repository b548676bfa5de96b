"""Shares: what a queue deserves, may have, and when its turn is."""

import numpy as np
import pytest

from falaj.core.errors import Corrupt, Invalid
from falaj.schedule.model import Queue
from falaj.schedule.order import Order
from falaj.schedule.share import Tree


def deserved(tree: Tree, **demand: int) -> dict[str, int]:
    """What each leaf of one quota deserves, by its last name."""
    rows = np.zeros((tree.top, len(tree.quotas)), np.int64)
    for name in tree.names:
        rows[tree.index[name], 0] = demand.get(name.rpartition("/")[2], 0)
    out = tree.deserved(rows)
    return {name.rpartition("/")[2]: int(out[tree.index[name], 0]) for name in tree.names}


def test_guarantees_come_first_and_the_rest_goes_by_weight() -> None:
    tree = Tree([Queue("root/a", guarantee={"gpu": 4000}), Queue("root/b"), Queue("root/c", weight=3)], {"gpu": 12000})
    assert deserved(tree, a=4000, b=9000, c=9000) == {"root": 12000, "a": 4000, "b": 2000, "c": 6000}
    assert deserved(tree, a=1000, b=9000, c=9000) == {"root": 12000, "a": 1000, "b": 2750, "c": 8250}


def test_what_is_not_lent_stays_aside() -> None:
    tree = Tree([Queue("a", guarantee={"gpu": 4000}, lend={"gpu": 1000}), Queue("b")], {"gpu": 8000})
    assert deserved(tree, a=0, b=9000) == {"a": 0, "b": 5000}
    tree.charge("b", [5000])
    assert tree.refusal("b", [1000]) == ("a", "gpu", 1000)
    assert tree.refusal("a", [3000]) is None


def test_a_limit_holds_at_every_level() -> None:
    tree = Tree([Queue("root/x", limit={"gpu": 3000}), Queue("root/x/a"), Queue("root/x/b")], {"gpu": 8000})
    tree.charge("root/x/a", [2000])
    assert tree.refusal("root/x/b", [1000]) is None
    assert tree.refusal("root/x/b", [2000]) == ("root/x", "gpu", 1000)
    with pytest.raises(Invalid):
        tree.refusal("root/x", [1])
    with pytest.raises(Corrupt):
        tree.charge("root/x/b", [1], -1)


def test_turns_go_to_the_neediest_and_move_with_each_start() -> None:
    queues = [Queue("root/a", weight=2), Queue("root/b"), Queue("root/z", guarantee={"gpu": 1000})]
    tree = Tree(queues, {"gpu": 8000})
    order = Order(tree)
    for queue in queues:
        order.want(queue.name, [1000])
    turns = []
    for _ in range(7):
        name = order.first()
        assert name is not None
        turns.append(name[-1])
        tree.charge(name, [1000])
        order.want(name, [1000])
    assert "".join(turns) == "zaabzaa"
    order.want("root/a", None)
    assert order.first() == "root/b"
