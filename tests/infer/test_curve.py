from hypothesis import given
from hypothesis import strategies as st

from falaj.infer.cost_curve import MIN_RUNS, CostCurve


def _measured(cost: "list[float]", most: int = 0) -> CostCurve:
    curve = CostCurve(most)
    for index, one in enumerate(cost):
        curve.note(1 << index, 4, one * (1 << index), MIN_RUNS)
    curve.decide()
    return curve


def test_a_tiny_model_is_run_in_large_batches_and_a_cnn_one_by_one() -> None:
    assert _measured([10 / (1 << index) + 0.1 for index in range(11)]).cap >= 512
    assert _measured([1.0, 1.0, 1.01, 0.99, 1.0]).cap == 1
    assert _measured([1.0, 0.95, 0.93, 0.95, 0.95]).cap == 1  # less than a tenth is not worth a wait
    assert _measured([1.0, 0.9, 0.8, 0.79, 0.79, 0.8]).cap == 4
    assert _measured([1.0, 0.9, 0.8, 0.77, 0.79, 0.8]).cap == 8


def test_what_nobody_has_seen_yet_is_tried() -> None:
    curve = _measured([1.0])
    for _ in range(12):
        curve.note(curve.cap, 4, 1e-6, MIN_RUNS)  # a run of any size takes as long
        curve.decide()
    assert curve.cap == curve.most
    assert _measured([1.0, 0.5, 0.3], most=4).cap == 4


def test_it_changes_its_mind() -> None:
    curve = _measured([1.0, 1.0, 1.0])
    assert curve.cap == 1
    probes = 0
    for _ in range(4000):
        rows = curve.limit()
        probes += rows > curve.cap
        curve.note(rows, 4, 1.0)  # from now on a batch costs as much as one row
    assert probes
    assert curve.cap > 1


@given(st.lists(st.floats(1e-7, 10), min_size=1, max_size=12), st.integers(0, 64))
def test_never_beyond_what_the_model_allows(cost: list[float], most: int) -> None:
    curve = _measured(cost, most)
    for _ in range(600):
        assert 1 <= curve.limit() <= curve.most
        curve.note(1, 1, 1e-6)


def test_a_size_on_trial_is_left_as_soon_as_it_is_known_to_be_worse() -> None:
    curve = _measured([1.0, 0.9, 0.8, 0.75])
    assert curve.cap == 16  # nobody has seen it yet
    for _ in range(MIN_RUNS):
        curve.note(16, 4, 0.8 * 16)
    assert curve.cap == 32  # two that are no better end the search
    for _ in range(MIN_RUNS):
        curve.note(32, 4, 0.8 * 32)
    assert curve.cap == 8


def test_a_batch_counts_for_the_size_that_it_is_cut_by() -> None:
    curve = _measured([1.0, 0.9, 0.8, 0.77, 0.8, 0.8])
    for _ in range(64):
        curve.note(6, 4, 0.77 * 6)  # as cheap as eight, but four are not
    assert curve.cap == 8


def test_one_run_that_the_machine_held_up_changes_nothing() -> None:
    cost = [10 / (1 << index) + 0.1 for index in range(11)]
    curve = _measured(cost)
    cap = curve.cap
    for index in (2, 3, 6):
        curve.note(1 << index, 4, 1000 * cost[index] * (1 << index))
    curve.decide()
    assert curve.cap == cap


def test_a_small_batch_after_many_large_ones_is_no_trial_of_its_size() -> None:
    cost = [10 / (1 << index) + 0.1 for index in range(11)]
    curve = _measured(cost)
    cap = curve.cap
    for _ in range(8):
        for _ in range(200):
            curve.note(64, 4, cost[6] * 64)
            assert curve.cap == cap
        curve.note(2, 4, cost[1] * 2)
        curve.note(64, 4, cost[6] * 64)
        assert curve.cap == cap
