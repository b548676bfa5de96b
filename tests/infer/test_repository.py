from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import FalajError, Invalid, NotFound
from falaj.infer.model_repository import ModelRepository


@pytest.fixture
def shelf(tmp_path: Path) -> ModelRepository:
    for place in ("m/1", "m/2", "m/10", "m/latest", "bank.score/3/code", ".hidden/1", "empty"):
        (tmp_path / "models" / place).mkdir(parents=True)
    (tmp_path / "outside" / "1").mkdir(parents=True)
    (tmp_path / "models" / "linked").symlink_to(tmp_path / "outside")
    (tmp_path / "models" / "m" / "99").symlink_to(tmp_path / "outside" / "1")
    return ModelRepository(str(tmp_path / "models"))


def test_what_lies_there(shelf: ModelRepository) -> None:
    assert shelf.all() == [("bank.score", "3"), ("m", "1"), ("m", "2"), ("m", "10")]


def test_the_newest_the_one_named_and_its_options(shelf: ModelRepository) -> None:
    assert shelf.find("m", {}).version == "10"
    assert shelf.find("m", {"version": "2"}).folder.endswith("models/m/2")
    assert shelf.find("bank.score", {}).code.endswith("bank.score/3/code")
    assert shelf.find("m", {"config": '{"queue": 5, "delay_ms": 1.5}'}).queue == 5


@pytest.mark.parametrize(
    "name", ["..", "../outside", "/etc", "linked", ".hidden", "m/1", "m\0", "", "empty", "a" * 300, "%2e%2e"]
)
def test_names_never_lead_elsewhere(shelf: ModelRepository, name: str) -> None:
    with pytest.raises(NotFound):
        shelf.find(name, {})


@given(name=st.text(max_size=30), version=st.text(max_size=10))
def test_any_name_is_found_below_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, name: str, version: str
) -> None:
    root = tmp_path_factory.getbasetemp() / "models"
    (root / "m" / "1").mkdir(parents=True, exist_ok=True)
    try:
        found = ModelRepository(str(root)).find(name, {"version": version})
    except FalajError:
        return
    assert found.folder == str(root / "m" / "1")


def test_options_that_are_none_are_refused(shelf: ModelRepository) -> None:
    for config in ("[]", "{", '{"max_batch_size": 1}', '{"queue": -1}', '{"queue": "x"}', '{"folder": "/"}', "[1]"):
        with pytest.raises(Invalid):
            shelf.find("m", {"config": config} if config != "[]" else {"config": "[[1]]"})
    with pytest.raises(Invalid, match="files of models"):
        shelf.find("m", {"file:1/model.onnx": "AAAA"})
