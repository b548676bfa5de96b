"""The platform looks into a model's files itself: what a publisher says of them opens no gate."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Invalid, NotFound
from tests.catalog.shelfhouse import model, publish
from tests.town import Town, refusal


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("town"))
    yield town
    town.close()


def test_a_lie_about_a_pickle_opens_no_gate(town: Town) -> None:
    amal = town.as_("amal")
    # The card says safetensors; the bytes are a pickle under that name.
    lie = model(amal, "x", "model:lies/m", format="skops", code_bearing=False)
    found = amal.catalog.inspect(lie)
    assert (found.format, found.code_bearing) == ("pickle", True)
    wish = amal.catalog.promote(lie, "production")
    assert wish.state == "refused"
    assert "may run code" in next(e.found for e in wish.evidence if e.rule == "safe format")


def test_what_was_not_looked_into_enters_no_gate(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    (tmp_path / "model.json").write_text("{}")
    ref = publish(amal, "model:unseen/m", "never looked into")
    wish = amal.catalog.promote(ref, "production")
    assert wish.state == "refused"
    assert "falaj catalog inspect" in next(e.found for e in wish.evidence if e.rule == "safe format")


def test_publishing_a_model_has_it_looked_into(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.pkl").write_bytes(pickle.dumps({"a": 1}))
    done = amal.catalog.publish("model:looked/m", str(tmp_path / "m"))
    assert "model.pkl" in done.note
    wish = amal.catalog.promote(done.ref, "production")
    assert wish.state == "refused"
    assert "'model.pkl' is a pickle" in wish.why, "nobody knows which file to export"


def test_a_metric_that_is_no_number_is_refused_before_anything_is_sent(town: Town, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    error = refusal(
        lambda: town.as_("amal").catalog.publish("model:diverged/m", str(tmp_path), metrics={"auc": float("nan")})
    )
    assert isinstance(error, Invalid)
    assert "'auc' is nan" in error.message


def test_only_models_are_looked_into(town: Town) -> None:
    amal = town.as_("amal")
    assert isinstance(refusal(lambda: amal.catalog.inspect(publish(amal))), Invalid)
    assert isinstance(refusal(lambda: town.as_("sara").catalog.inspect("model:lies/m")), NotFound)
