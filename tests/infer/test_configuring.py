import json
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.core.model_manifest import ModelManifest
from falaj.infer.records import FeatureConfig, ModelConfig, RequestLogConfig, ServerConfig
from falaj.infer.server_config import config_from_attempt, parse_config

WHOLE = {
    "models": [
        {
            "name": "m",
            "version": "1",
            "folder": "/models/m",
            "files": {"model.onnx": "ab"},
            "sheet": {"runtime": "onnx"},
            "features": {"online": "lmdb:///x", "plan": {"a": 1}},
            "delay_ms": 1,
        }
    ],
    "http": "127.0.0.1:0",
    "keys": ["ab"],
    "journal": {"folder": "/logs", "sample": 0.5},
}


def test_a_whole_config() -> None:
    features = FeatureConfig("lmdb:///x", {"a": 1})
    files = {"model.onnx": "ab"}
    model = ModelConfig("m", "1", "/models/m", files=files, sheet=ModelManifest("onnx"), features=features, delay_ms=1)
    assert parse_config(json.dumps(WHOLE)) == ServerConfig(
        models=(model,), http="127.0.0.1:0", keys=("ab",), journal=RequestLogConfig("/logs", 0.5)
    )


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"htp": "127.0.0.1:0"}',
        '{"http": 1}',
        '{"open": "yes"}',
        '{"drain_s": true}',
        '{"models": [{"version": "1"}]}',
        '{"models": [{"name": "m", "version": 1}]}',
        '{"models": [{"name": "m", "version": "1", "colour": "red"}]}',
        '{"models": [{"name": "m", "version": "1", "sheet": {"colour": "red"}}]}',
        '{"journal": {"folder": "x", "smple": 1}}',
        '{"models": "m"}',
        '{"keys": "ab"}',
        '{"journal": {}}',
    ],
)
def test_what_is_not_known_is_refused(config: str) -> None:
    with pytest.raises(Invalid):
        parse_config(config)


def test_a_replica_finds_its_folders_and_key_in_its_environment() -> None:
    config = config_from_attempt(
        {
            "FALAJ_PARAM_SERVE": '{"models": [{"name": "fraud.score", "version": "3"}], "hop": "127.0.0.1:0"}',
            "FALAJ_INPUT_MODEL": "/in/model",
            "FALAJ_INPUT_CODE": "/in/code",
            "FALAJ_PARAM_HOP_KEY": "k" * 20,
            "FALAJ_PARAM_HOP_CERT": "CERT",
            "FALAJ_PARAM_HOP_PRIVATE": "PRIVATE",
        }
    )
    assert config.models[0].folder == "/in/model"
    assert config.models[0].code == "/in/code"
    assert config.hop_key == "k" * 20
    assert Path(config.key).read_text() == "PRIVATE"
    assert Path(config.key).stat().st_mode & 0o077 == 0
