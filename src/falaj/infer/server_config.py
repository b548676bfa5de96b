"""What a server is told, from JSON or from the attempt it runs in. Every field is known or refused."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from falaj.asof.space_keys import decrypt_space_keys
from falaj.core.errors import Invalid
from falaj.core.model_manifest import parse_manifest
from falaj.core.online_rows import READER_PASSWORD_VARIABLE, derive_reader_password
from falaj.infer.records import CountingConfig, FeatureConfig, ModelConfig, RequestLogConfig, ServerConfig

SERVE_VARIABLE, UPSTREAM_KEY_VARIABLE, UPSTREAM_CERT_VARIABLE, UPSTREAM_PRIVATE_KEY_VARIABLE = (
    f"FALAJ_PARAM_{parameter_name}" for parameter_name in ("SERVE", "HOP_KEY", "HOP_CERT", "HOP_PRIVATE")
)
LISTEN_FD_VARIABLE, LISTEN_HOST_VARIABLE = "FALAJ_LISTEN_FD", "FALAJ_LISTEN_HOST"
"""Set by the launcher of a sandboxed replica: the listening socket it inherits, and where others reach that."""


def parse_config(data: str | bytes) -> ServerConfig:
    """A Config from JSON; Invalid, saying what is wrong, for anything else."""
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the config of the server is not JSON: {str(error)[:200]}", "see docs/serve.md") from error
    config_fields = _check_fields(decoded, ServerConfig)
    config_fields["models"] = tuple(_parse_model(model_fields) for model_fields in config_fields.get("models") or ())
    config_fields["keys"] = tuple(config_fields.get("keys") or ())
    if config_fields.get("journal") is not None:
        config_fields["journal"] = RequestLogConfig(**_check_fields(config_fields["journal"], RequestLogConfig))
    return ServerConfig(**config_fields)


def config_from_attempt(environment: Mapping[str, str] | None = None) -> ServerConfig:
    """The config of a replica: what its job was given, with the folders and the key it finds in its environment."""
    environment = os.environ if environment is None else environment
    config = parse_config(environment[SERVE_VARIABLE])
    model, code = environment.get("FALAJ_INPUT_MODEL", ""), environment.get("FALAJ_INPUT_CODE", "")
    models = tuple(
        replace(configured_model, folder=configured_model.folder or model, code=configured_model.code or code)
        for configured_model in config.models
    )
    config = replace(config, models=models, hop_key=environment.get(UPSTREAM_KEY_VARIABLE, config.hop_key))
    config = replace(config, models=tuple(_with_space_keys(model, config.hop_key) for model in config.models))
    config = replace(
        config,
        hop_fd=int(environment.get(LISTEN_FD_VARIABLE, "-1")),
        hop_host=environment.get(LISTEN_HOST_VARIABLE, ""),
    )
    if config.hop_key:
        os.environ.setdefault(READER_PASSWORD_VARIABLE, derive_reader_password(config.hop_key))
    if environment.get(UPSTREAM_CERT_VARIABLE):
        folder = Path(tempfile.mkdtemp(prefix="falaj-hop-"))  # only its owner may look in
        for name, value in (
            ("cert.pem", environment[UPSTREAM_CERT_VARIABLE]),
            ("key.pem", environment.get(UPSTREAM_PRIVATE_KEY_VARIABLE, "")),
        ):
            (folder / name).touch(0o600)
            (folder / name).write_text(value)
        config = replace(config, cert=str(folder / "cert.pem"), key=str(folder / "key.pem"))
    return config


def _with_space_keys(model: ModelConfig, endpoint_key: str) -> ModelConfig:
    """A model whose features can be read: the keys of their rows are opened with the endpoint's secret."""
    if model.features is None or not model.features.keys:
        return model
    return replace(
        model, features=replace(model.features, space_keys=decrypt_space_keys(endpoint_key, model.features.keys))
    )


def _parse_model(decoded: Any) -> ModelConfig:
    model_fields = _check_fields({"folder": "", **decoded} if isinstance(decoded, dict) else decoded, ModelConfig)
    if model_fields.get("sheet") is not None:
        model_fields["sheet"] = parse_manifest(model_fields["sheet"])
    if model_fields.get("features") is not None:
        model_fields["features"] = FeatureConfig(**_check_fields(model_fields["features"], FeatureConfig))
    if model_fields.get("watch") is not None:
        model_fields["watch"] = CountingConfig(**_check_fields(model_fields["watch"], CountingConfig))
    if not model_fields["name"] or not model_fields["version"]:
        raise Invalid("a model of the config has no name or no version", 'for example {"name": "m", "version": "1"}')
    return ModelConfig(**model_fields)


def _check_fields(decoded: Any, record: type) -> dict[str, Any]:
    """The fields of a record: all known, those it needs there, numbers and texts where they belong."""
    fields_by_name = {record_field.name: record_field for record_field in fields(record)}
    if not isinstance(decoded, dict) or set(decoded) - set(fields_by_name):
        unknown_name = (
            min(set(decoded) - set(fields_by_name))[:60] if isinstance(decoded, dict) else type(decoded).__name__
        )
        raise Invalid(
            f"{record.__name__} of the server's config has no {unknown_name!r}", f"it has {', '.join(fields_by_name)}"
        )
    for name, record_field in fields_by_name.items():
        expected_types = _FIELD_TYPES.get(
            record_field.type, (list,) if str(record_field.type).startswith("tuple") else ()
        )
        value = decoded.get(name, record_field.default)
        if value is MISSING and record_field.default_factory is MISSING:
            raise Invalid(f"{record.__name__} of the server's config has no {name}", "it cannot be left out")
        if (
            name in decoded
            and expected_types
            and (not isinstance(value, expected_types) or isinstance(value, bool) != (bool in expected_types))
        ):
            raise Invalid(
                f"{name} of the server's config is {str(value)[:60]!r}", f"it is {expected_types[0].__name__}"
            )
    return dict(decoded)


_FIELD_TYPES: Mapping[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (float, int), bool: (bool,)}
