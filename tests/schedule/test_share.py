"""Shares: what a queue deserves, may have, and when its turn is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from falaj.core.errors import CorruptData, Invalid
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.fair_share_order import FairShareOrder
from falaj.schedule.model import Queue


def deserved(tree: ShareTree, **demand: int) -> dict[str, int]:
    """What each leaf of one quota deserves, by its last name."""
    rows = np.zeros((tree.top, len(tree.quotas)), np.int64)
    for name in tree.names:
        rows[tree.index[name], 0] = demand.get(name.rpartition("/")[2], 0)
    out = tree.deserved(rows)
    return {name.rpartition("/")[2]: int(out[tree.index[name], 0]) for name in tree.names}


def test_guarantees_come_first_and_the_rest_goes_by_weight() -> None:
    tree = ShareTree(
        [Queue("root/a", guarantee={"gpu": 4000}), Queue("root/b"), Queue("root/c", weight=3)], {"gpu": 12000}
    )
    assert deserved(tree, a=4000, b=9000, c=9000) == {"root": 12000, "a": 4000, "b": 2000, "c": 6000}
    assert deserved(tree, a=1000, b=9000, c=9000) == {"root": 12000, "a": 1000, "b": 2750, "c": 8250}


def test_what_is_not_lent_stays_aside() -> None:
    tree = ShareTree([Queue("a", guarantee={"gpu": 4000}, lend={"gpu": 1000}), Queue("b")], {"gpu": 8000})
    assert deserved(tree, a=0, b=9000) == {"a": 0, "b": 5000}
    tree.charge("b", [5000])
    assert tree.refusal("b", [1000]) == ("a", "gpu", 1000)
    assert tree.refusal("a", [3000]) is None


def test_a_limit_holds_at_every_level() -> None:
    tree = ShareTree([Queue("root/x", limit={"gpu": 3000}), Queue("root/x/a"), Queue("root/x/b")], {"gpu": 8000})
    tree.charge("root/x/a", [2000])
    assert tree.refusal("root/x/b", [1000]) is None
    assert tree.refusal("root/x/b", [2000]) == ("root/x", "gpu", 1000)
    with pytest.raises(Invalid):
        tree.refusal("root/x", [1])
    with pytest.raises(CorruptData):
        tree.charge("root/x/b", [1], -1)


def test_turns_go_to_the_neediest_and_move_with_each_start() -> None:
    queues = [Queue("root/a", weight=2), Queue("root/b"), Queue("root/z", guarantee={"gpu": 1000})]
    tree = ShareTree(queues, {"gpu": 8000})
    order = FairShareOrder(tree)
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


QUOTAS = {"gpu": 64_000, "cpu": 512_000, "memory": 4_000_000}
amounts = st.tuples(*(st.integers(0, 80).map(lambda part, most=most: part * most) for most in (1000, 8000, 60_000)))
flat = st.lists(st.tuples(st.integers(1, 5), amounts), min_size=1, max_size=8)
leaves = st.lists(
    st.tuples(
        st.integers(1, 5), st.integers(0, 80_000), st.sampled_from([0, 0, 4000, 20_000]),
        st.sampled_from([None, 10_000, 40_000]), st.sampled_from([None, 0, 2000]),
    ),
    min_size=1, max_size=9,
)  # fmt: skip


def grove(
    leaves: list[tuple[int, int, int, int | None, int | None]], capacity: int
) -> tuple[ShareTree, NDArray[np.int64]]:
    """A tree of one quota, three levels deep, and what its leaves want."""
    names = [f"root/d{number % 3}/t{number}" for number in range(len(leaves))]
    queues = [
        Queue(
            name, weight, {"gpu": promised} if promised else {}, {"gpu": limit} if limit else {},
            {} if lend is None else {"gpu": lend},
        )
        for name, (weight, _, promised, limit, lend) in zip(names, leaves, strict=True)
    ]  # fmt: skip
    tree = ShareTree([Queue("root/d1", 2, {"gpu": 10_000}, {"gpu": 50_000}), *queues], {"gpu": capacity})
    demand = np.zeros((tree.top, 1), np.int64)
    for name, (_, want, *_) in zip(names, leaves, strict=True):
        demand[tree.index[name]] = want
    return tree, demand


@given(leaves, st.integers(1000, 90_000))
def test_where_nothing_is_promised_nothing_is_worked_out(
    leaves: list[tuple[int, int, int, int | None, int | None]], capacity: int
) -> None:
    tree, demand = grove([(weight, want, 0, limit, None) for weight, want, _, limit, _ in leaves], capacity)
    bare = ShareTree([replace(queue, guarantee={}) for queue in tree.queues], {"gpu": capacity})
    slow = bare._divide_amounts(
        demand, np.zeros((bare.top + 1, 1), np.int64), bare._promised_rows, allow_borrowing=False
    )[: bare.top]
    assert (bare.promised(demand) == slow).all()


def test_what_one_leaves_of_its_guarantee_is_promised_to_nobody_else() -> None:
    """Its neighbours may borrow it, and give it back; only what their parent is guaranteed itself is theirs, too."""
    queues = [Queue("root/d/a"), Queue("root/d/b", guarantee={"gpu": 12_000}), Queue("root/e/f/g")]
    tree = ShareTree([*queues, Queue("root/e", guarantee={"gpu": 3000})], {"gpu": 16_000})
    demand = np.zeros((tree.top, 1), np.int64)
    for name, want in (("root/d/a", 16_000), ("root/d/b", 5000), ("root/e/f/g", 16_000)):
        demand[tree.index[name]] = want
    got = {name: int(tree.promised(demand)[tree.index[name], 0]) for name in ("root/d/a", "root/d/b", "root/e/f/g")}
    assert got == {"root/d/a": 0, "root/d/b": 5000, "root/e/f/g": 3000}


def test_of_too_many_promises_everybody_has_the_same_part_whoever_wants_little() -> None:
    queues = [Queue(f"root/{name}", guarantee={"gpu": 10_000}) for name in ("d/a", "e/b")]
    tree = ShareTree(queues, {"gpu": 8000})
    demand = np.zeros((tree.top, 1), np.int64)
    demand[tree.index["root/d/a"]], demand[tree.index["root/e/b"]] = 2000, 10_000
    got = tree.promised(demand)[[tree.index["root/d/a"], tree.index["root/e/b"]], 0].tolist()
    assert got == [2000, 6000]


@given(leaves, st.integers(1000, 90_000))
def test_nobody_gets_more_than_there_is_than_it_wants_or_than_its_limit(
    leaves: list[tuple[int, int, int, int | None, int | None]], capacity: int
) -> None:
    """I3, and that nothing is left while somebody may still have it."""
    tree, demand = grove(leaves, capacity)
    got = tree.deserved(demand)
    slack = len(leaves) + capacity // 2000
    top = int(got[tree.children[tree.top]].sum())
    assert top <= capacity + slack
    for row in range(tree.top):
        assert got[row, 0] <= tree.limit[row][0] + slack
        assert tree.children[row] or got[row, 0] <= demand[row, 0]
    kept = sum(max(tree.guarantee[row][0], 0) for row in range(tree.top) if tree.queues[row].lend)
    for row in range(tree.top):
        hungry = not tree.children[row] and got[row, 0] + slack < min(demand[row, 0], tree.limit[row][0])
        room = min([capacity - top, *(tree.limit[at][0] - int(got[at, 0]) for at in tree.paths[row])])
        assert not hungry or room <= slack + kept


@given(leaves, st.integers(1000, 90_000), st.integers(0, 40_000))
def test_more_capacity_never_lowers_what_a_leaf_deserves(
    leaves: list[tuple[int, int, int, int | None, int | None]], capacity: int, more: int
) -> None:
    """I11, in one quota. Over several no division that wastes nothing can keep it."""
    tree, demand = grove(leaves, capacity)
    larger, _ = grove(leaves, capacity + more)
    slack = 1 + len(leaves) + (capacity + more) // 2000
    assert (larger.deserved(demand.copy()) + slack >= tree.deserved(demand)).all()


def dominant(got: NDArray[np.int64]) -> list[int]:
    return [int(share) for share in (got * (1 << 20) // np.array(list(QUOTAS.values()))).max(axis=1)]


@given(flat)
def test_sharing_is_no_worse_than_a_split_by_weight(leaves: list[tuple[int, tuple[int, int, int]]]) -> None:
    """I10: everybody gets what they want, or at least their part by weight of what is most important to them."""
    tree = ShareTree([Queue(f"q{number}", weight) for number, (weight, _) in enumerate(leaves)], QUOTAS)
    demand = np.array([want for _, want in leaves], np.int64)
    whole = sum(weight for weight, _ in leaves)
    for (weight, _), share, want in zip(leaves, dominant(tree.deserved(demand)), dominant(demand), strict=True):
        assert share + 64 >= min(want, (1 << 20) * weight // whole)


@given(flat, st.integers(0, 7), amounts)
def test_asking_for_more_than_one_needs_gains_nothing(
    leaves: list[tuple[int, tuple[int, int, int]]], liar: int, more: tuple[int, int, int]
) -> None:
    """I12: of what it truly needs, in the proportion it needs it, the liar does not get more."""
    tree = ShareTree([Queue(f"q{number}", weight) for number, (weight, _) in enumerate(leaves)], QUOTAS)
    demand = np.array([want for _, want in leaves], np.int64)
    liar %= len(leaves)
    true = demand[liar].copy()
    honest = tree.deserved(demand)[liar]
    demand[liar] += np.array(more)
    lied = tree.deserved(demand)[liar]
    useful = [
        min((int(part) * 4096 // int(need) for part, need in zip(got, true, strict=True) if need), default=0)
        for got in (honest, lied)
    ]
    assert min(useful[1], 4096) <= useful[0] + 8


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3000), st.booleans()), max_size=60), leaves)
def test_what_is_not_refused_keeps_every_law(
    moves: list[tuple[int, int, bool]], leaves: list[tuple[int, int, int, int | None, int | None]]
) -> None:
    """I3 in every state: limits at every level, and never what a queue keeps for itself."""
    tree, _ = grove(leaves, 40_000)
    names = [name for row, name in enumerate(tree.names) if not tree.children[row]]
    held: list[tuple[str, int]] = []
    for leaf, amount, back in moves:
        name = names[leaf % len(names)]
        if back and held:
            tree.charge(held[0][0], [held.pop(0)[1]], -1)
        elif tree.usage[tree.top][0] + amount <= 40_000 and tree.refusal(name, [amount]) is None:
            tree.charge(name, [amount])
            held.append((name, amount))
        for row in range(tree.top + 1):
            assert tree.usage[row][0] <= tree.limit[row][0]
        for row, name in enumerate(tree.names):
            queue = tree.queues[row]
            own = max(queue.guarantee.get("gpu", 0) - queue.lend.get("gpu", 1 << 40), 0) - tree.usage[row][0]
            if own > 0 and sum(tree._kept_rows[at][0] for at in tree.children[tree.top]) <= 40_000:
                assert tree.refusal(name, [own]) is None or any(
                    tree.usage[at][0] + own > tree.limit[at][0] for at in tree.paths[row]
                )


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0, 1000, 2000, 5000])), max_size=60), leaves)
def test_the_order_kept_is_the_order_worked_out_anew(
    moves: list[tuple[int, int]], leaves: list[tuple[int, int, int, int | None, int | None]]
) -> None:
    tree, _ = grove(leaves, 40_000)
    names = [name for row, name in enumerate(tree.names) if not tree.children[row]]
    order, wants = FairShareOrder(tree), dict[str, list[int] | None]()
    for leaf, amount in moves:
        name = names[leaf % len(names)]
        tree.charge(name, [1000])
        wants[name] = [amount] if amount else None
        order.want(name, wants[name])
        anew = FairShareOrder(tree)
        for other in sorted(wants):
            anew.want(other, wants[other])
        assert order.first() == anew.first()
