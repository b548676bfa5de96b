"""Holds the language and the shape of the package to limits.json; a limit is changed only towards its goal."""

import json
from pathlib import Path

import pytest

from tests.shape.naming import MEASURES, Measure, split_words

LIMITS = json.loads((Path(__file__).parent / "limits.json").read_text(encoding="utf-8"))


def test_every_measure_has_a_limit() -> None:
    assert {measure.name for measure in MEASURES} == LIMITS.keys()


@pytest.mark.parametrize("measure", MEASURES, ids=[measure.name for measure in MEASURES])
def test_measure_keeps_its_limit(measure: Measure) -> None:
    figure, limit = measure.compute(), LIMITS[measure.name]["limit"]
    assert figure >= limit if measure.at_least else figure <= limit, (
        f"{measure.name}: {figure}, limit {limit}; see python -m tests.shape.report"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [("_parse_headers", ["parse", "headers"]), ("HTTPServer2", ["HTTP", "Server2"]), ("Ledger", ["Ledger"])],
)
def test_identifiers_are_split_into_words(name: str, words: list[str]) -> None:
    assert split_words(name) == words
