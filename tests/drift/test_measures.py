"""Measures of counts against scipy on the values themselves, and chances against what chance does."""

import numpy as np
import pytest
from scipy import stats

from falaj.drift import measures
from falaj.drift.measures import Floats, Ints

some = np.random.default_rng(8)


def cut(values: Floats, edges: Floats) -> Ints:
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.5, 2.0])
def test_measures_of_bins_are_those_of_the_values(shift: float) -> None:
    now, then = some.normal(shift, 1, 4_000), some.normal(0, 1, 9_000)
    edges = np.quantile(then, np.arange(1, 128) / 128)
    ours, theirs = cut(now, edges), cut(then, edges)
    true = stats.ks_2samp(now, then)
    assert float(measures.compute_ks(ours, theirs)) == pytest.approx(true.statistic, abs=0.01)
    assert float(measures.compute_ks(ours, theirs)) <= true.statistic + 1e-12
    places = np.concatenate([[then.min()], edges[:-1] / 2 + edges[1:] / 2, [then.max()]])
    far = stats.wasserstein_distance(now, then)
    assert float(measures.compute_distance(ours, theirs, places)) == pytest.approx(far, abs=0.06 + 0.15 * far)
    ranks = stats.mannwhitneyu(now, then, use_continuity=False).pvalue
    assert float(measures.compute_rank_p(ours, theirs)) == pytest.approx(ranks, abs=0.03)


def test_measures_of_counts_are_those_of_scipy() -> None:
    ours, theirs = some.integers(20, 90, 12), some.integers(20, 300, 12)
    a, b = ours / ours.sum(), theirs / theirs.sum()
    middle = (a + b) / 2
    divergence = (stats.entropy(a, middle, base=2) + stats.entropy(b, middle, base=2)) / 2
    assert float(measures.compute_js(ours, theirs)) == pytest.approx(np.sqrt(divergence))
    assert float(measures.compute_total_variation(ours, theirs)) == pytest.approx(np.abs(a - b).sum() / 2)
    assert float(measures.compute_psi(ours, theirs)) == pytest.approx(float(np.sum((a - b) * np.log(a / b))), rel=0.05)
    statistic, free = measures.compute_chi2(ours, theirs)
    both = [stats.chi2_contingency([ours, theirs], lambda_=one).statistic for one in ("pearson", "log-likelihood")]
    assert (float(statistic), int(free)) == (pytest.approx(min(both)), 11)


@pytest.mark.parametrize("free", [1, 2, 5, 30, 127])
def test_chances_of_chi_square(free: int) -> None:
    at = stats.chi2.isf([0.5, 0.05, 0.01, 1e-4], free)
    found = measures.compute_chi2_p(at, np.full(4, free))
    assert found[:3] == pytest.approx([0.5, 0.05, 0.01], rel=0.1)
    assert 0.95e-4 <= found[3] <= 1.5e-4  # Far out it is careful.


def test_chances_of_a_step() -> None:
    for rows, others in ((100, 5_000), (5_000, 5_000)):
        steps = np.array([0.5, 1.0, 1.36, 1.63, 2.0]) * np.sqrt(1 / rows + 1 / others)
        true = stats.kstwobign.sf([0.5, 1.0, 1.36, 1.63, 2.0])
        assert measures.compute_ks_p(steps, np.full(5, rows), np.full(5, others)) == pytest.approx(true, rel=1e-6)
    assert measures.compute_ks_p(np.zeros(1), np.zeros(1), np.ones(1)) == [1.0]


def test_the_chance_of_a_rate_is_never_below_the_true_one() -> None:
    for hits, rows, other_hits, others in (
        (1, 500, 0, 10_000),
        (5, 100, 0, 100),
        (30, 1_000, 100, 9_000),
        (2, 9, 1, 9),
    ):
        ours = float(measures.compute_tail_p(*(np.array(one) for one in (hits, rows, other_hits, others))))
        table = [[hits, rows - hits], [other_hits, others - other_hits]]
        assert stats.fisher_exact(table, "greater").pvalue <= ours * (1 + 1e-9) <= 1.0
    assert measures.compute_tail_p(np.array(1), np.array(100), np.array(5), np.array(100)) == 1.0


def test_columns_in_one_matrix_are_measured_as_each_by_itself() -> None:
    sizes = (3, 128, 17, 1)
    ours, theirs = np.zeros((4, 128), np.int64), np.zeros((4, 128), np.int64)
    for at, size in enumerate(sizes):
        ours[at, :size], theirs[at, :size] = some.integers(0, 30, size), some.integers(0, 90, size)
    ours[3], theirs[3, 0] = 0, 9
    for measure in (
        measures.compute_ks,
        measures.compute_psi,
        measures.compute_js,
        measures.compute_total_variation,
        measures.compute_rank_p,
    ):
        alone = [float(measure(ours[at, :size], theirs[at, :size])) for at, size in enumerate(sizes)]
        assert measure(ours, theirs) == pytest.approx(alone)
    alone_chi = [float(measures.compute_chi2(ours[at, :size], theirs[at, :size])[0]) for at, size in enumerate(sizes)]
    assert measures.compute_chi2(ours, theirs)[0] == pytest.approx(alone_chi)
    assert [one.sum() for one in measures.join_to_tenths(ours, theirs)] == [ours.sum(), theirs.sum()]


def test_rare_cells_do_not_cry_wolf() -> None:
    shares = np.array([0.9, 0.09, 0.006, 0.002, 0.002])
    ours, theirs = some.multinomial(1_000, shares, 4_000), some.multinomial(5_000, shares, 4_000)
    p = measures.compute_chi2_p(*measures.compute_chi2(ours, theirs))
    assert np.mean(p <= 0.05) <= 0.06
    assert np.mean(p <= 0.002) <= 0.005


def test_discoveries_are_those_of_benjamini_and_hochberg() -> None:
    p = np.concatenate([some.random(40), some.random(5) / 1_000])
    some.shuffle(p)
    true = stats.false_discovery_control(p) <= 0.05
    assert measures.find_discoveries(p, 0.05).tolist() == true.tolist()
    assert not measures.find_discoveries(np.ones((3, 2)), 0.05).any()
    assert measures.find_discoveries(np.empty(0), 0.05).size == 0
