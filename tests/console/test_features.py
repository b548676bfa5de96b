"""Pages of features: freshness, what came in, quality, who relies on a view, and no program of anybody's run here."""

import pytest

from falaj.console.pages.features.definition_parts import list_dependency_edges
from falaj.console.pages.features.feature_view_page import compute_edges, parse_blocks
from falaj.core.ref import Ref
from tests.console.ground import Ground, Visitor

VIEW = "/console/features/view:fraud/card-stats"
SERVICE = "/console/features/service:fraud/scoring"
SCORING, TRAIN, MODEL = (
    Ref.parse(one) for one in ("service:fraud/scoring@v1", "dataset:fraud/train@v1", "model:fraud/scorer@v1")
)
STATS, CARD = Ref.parse("view:fraud/card-stats@v1"), Ref.parse("entity:fraud/card@v1")


def test_views_are_listed_with_how_fresh_they_are(amal: Visitor) -> None:
    row = amal.get("/console/features").tree.one("#view-fraud-card-stats")
    assert "190" in row.text
    assert "1 day ago" in row.text
    assert "fresh" in row.text


@pytest.mark.parametrize(
    ("query", "there", "gone"),
    [
        ("q=payments", "card-spent", "card-stats"),
        ("q=balance", "card-stats", "card-spent"),
        ("q=nothing-like-it", "Nothing is defined here", "card-stats"),
        ("tab=service", "scoring", "45d"),
        ("tab=entity", "card_id", "card-stats"),
    ],
)
def test_lists_are_searched_by_any_word(amal: Visitor, query: str, there: str, gone: str) -> None:
    text = amal.get(f"/console/features?{query}").text
    assert there in text
    assert gone not in text.partition("The same as a command")[0]


def test_a_view_tells_what_came_in_and_what_was_kept_apart(amal: Visitor) -> None:
    seen = amal.get(VIEW)
    assert seen.status == 200
    assert "range(balance): 10 of 200 rows break it" in seen.tree.one("#chapters").text
    for word in ("45d", "dataset:fraud/cards", "float64", "falaj features materialize view:fraud/card-stats"):
        assert word in seen.text, word


def test_quality_is_judged_and_columns_are_drawn(amal: Visitor) -> None:
    seen = amal.get(f"{VIEW}?tab=quality")
    assert "worth a look" in seen.tree.one("#verdict").text
    assert "5.0% of the last arrival was kept apart" in seen.text
    assert "balance" in seen.tree.one("#columns").text
    assert "<svg" in seen.html.partition('id="columns"')[2]


def test_who_relies_on_a_view_is_a_graph_of_links(amal: Visitor) -> None:
    links = [one["href"] for one in amal.get(f"{VIEW}?tab=users").main.all("a")]
    assert "/console/features/service:fraud/scoring@v1" in links
    assert "/console/features/entity:fraud/card@v1" in links


def test_a_service_tells_what_it_gives_and_whether_it_is_true(amal: Visitor) -> None:
    outputs = amal.get(SERVICE).tree.one("#outputs").text
    for word in ("balance", "sum_amount_7d", "view:fraud/card-stats", "card_id"):
        assert word in outputs, word
    assert "No read was told yet" in amal.get(f"{SERVICE}?tab=skew").text


def test_who_may_not_see_it_is_told_so(platform: Ground) -> None:
    assert platform.visitor("sara").get(VIEW).status in (403, 404)
    assert "Nothing is defined here" in platform.visitor("sara").get("/console/features").text


def test_edges_lead_from_what_it_is_made_of_to_models() -> None:
    assert list_dependency_edges(STATS, (CARD,), (SCORING, TRAIN, MODEL)) == [
        (str(CARD), str(STATS)), (str(STATS), str(SCORING)), (str(SCORING), str(TRAIN)), (str(TRAIN), str(MODEL)),
    ]  # fmt: skip
    assert list_dependency_edges(STATS, (), (MODEL,)) == [(str(STATS), str(MODEL))]


def test_bins_have_an_end_and_blocks_a_height() -> None:
    assert compute_edges([("0", 3), ("2.5", 1)]) == [0.0, 2.5, 5.0]
    assert compute_edges([("7", 1)]) == [7.0, 8.0]
    assert parse_blocks("▁█ x") == [1.0, 8.0, 0.0]
