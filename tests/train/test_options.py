"""Options: what the script says, and over that whoever starts it."""

import json

import pytest

from falaj.core.errors import Invalid
from falaj.train.options import Options


def test_who_starts_the_script_stands_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options(micro=8).said() == Options(micro=8)
    monkeypatch.setenv("FALAJ_TRAIN", json.dumps({"micro": 4, "compile": True}))
    assert Options(micro=8, seed=3).said() == Options(micro=4, seed=3, compile=True)


@pytest.mark.parametrize(
    ("text", "match"), [("{", "not JSON"), ("[1]", "no JSON object"), ('{"colour": 1}', "no option colour")]
)
def test_what_makes_no_sense_is_refused(text: str, match: str) -> None:
    with pytest.raises(Invalid, match=match):
        Options().said(text)


@pytest.mark.parametrize("wrong", [{"precision": "fp1"}, {"reproducible": "very"}])
def test_words_are_known(wrong: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        Options(**wrong)  # type: ignore[arg-type]
