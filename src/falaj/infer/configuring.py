"""What a server is told, from JSON or from the attempt it runs in. Every field is known or refused."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from falaj.asof.space_keys import open_keys
from falaj.core.errors import Invalid
from falaj.core.online import READER_PASSWORD, reader_password
from falaj.core.sheet import sheet_of
from falaj.infer.records import Config, Counting, Features, Journal, ModelConfig

SERVE, HOP_KEY, HOP_CERT, HOP_PRIVATE = (
    f"FALAJ_PARAM_{one}" for one in ("SERVE", "HOP_KEY", "HOP_CERT", "HOP_PRIVATE")
)
LISTEN_FD, LISTEN_HOST = "FALAJ_LISTEN_FD", "FALAJ_LISTEN_HOST"
"""Set by the launcher of a sandboxed replica: the listening socket it inherits, and where others reach that."""


def read_config(data: str | bytes) -> Config:
    """A Config from JSON; Invalid, saying what is wrong, for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the config of the server is not JSON: {str(error)[:200]}", "see docs/serve.md") from error
    plain = _checked(found, Config)
    plain["models"] = tuple(_model(one) for one in plain.get("models") or ())
    plain["keys"] = tuple(plain.get("keys") or ())
    if plain.get("journal") is not None:
        plain["journal"] = Journal(**_checked(plain["journal"], Journal))
    return Config(**plain)


def of_attempt(known: Mapping[str, str] | None = None) -> Config:
    """The config of a replica: what its job was given, with the folders and the key it finds in its environment."""
    known = os.environ if known is None else known
    config = read_config(known[SERVE])
    model, code = known.get("FALAJ_INPUT_MODEL", ""), known.get("FALAJ_INPUT_CODE", "")
    models = tuple(replace(one, folder=one.folder or model, code=one.code or code) for one in config.models)
    config = replace(config, models=models, hop_key=known.get(HOP_KEY, config.hop_key))
    config = replace(config, models=tuple(_with_keys(model, config.hop_key) for model in config.models))
    config = replace(config, hop_fd=int(known.get(LISTEN_FD, "-1")), hop_host=known.get(LISTEN_HOST, ""))
    if config.hop_key:
        os.environ.setdefault(READER_PASSWORD, reader_password(config.hop_key))
    if known.get(HOP_CERT):
        folder = Path(tempfile.mkdtemp(prefix="falaj-hop-"))  # only its owner may look in
        for name, value in (("cert.pem", known[HOP_CERT]), ("key.pem", known.get(HOP_PRIVATE, ""))):
            (folder / name).touch(0o600)
            (folder / name).write_text(value)
        config = replace(config, cert=str(folder / "cert.pem"), key=str(folder / "key.pem"))
    return config


def _with_keys(model: ModelConfig, endpoint_key: str) -> ModelConfig:
    """A model whose features can be read: the keys of their rows are opened with the endpoint's secret."""
    if model.features is None or not model.features.keys:
        return model
    return replace(model, features=replace(model.features, space_keys=open_keys(endpoint_key, model.features.keys)))


def _model(found: Any) -> ModelConfig:
    plain = _checked({"folder": "", **found} if isinstance(found, dict) else found, ModelConfig)
    if plain.get("sheet") is not None:
        plain["sheet"] = sheet_of(plain["sheet"])
    if plain.get("features") is not None:
        plain["features"] = Features(**_checked(plain["features"], Features))
    if plain.get("watch") is not None:
        plain["watch"] = Counting(**_checked(plain["watch"], Counting))
    if not plain["name"] or not plain["version"]:
        raise Invalid("a model of the config has no name or no version", 'for example {"name": "m", "version": "1"}')
    return ModelConfig(**plain)


def _checked(found: Any, record: type) -> dict[str, Any]:
    """The fields of a record: all known, those it needs there, numbers and texts where they belong."""
    known = {one.name: one for one in fields(record)}
    if not isinstance(found, dict) or set(found) - set(known):
        odd = min(set(found) - set(known))[:60] if isinstance(found, dict) else type(found).__name__
        raise Invalid(f"{record.__name__} of the server's config has no {odd!r}", f"it has {', '.join(known)}")
    for name, one in known.items():
        wanted = _TYPES.get(one.type, (list,) if str(one.type).startswith("tuple") else ())
        value = found.get(name, one.default)
        if value is MISSING and one.default_factory is MISSING:
            raise Invalid(f"{record.__name__} of the server's config has no {name}", "it cannot be left out")
        if name in found and wanted and (not isinstance(value, wanted) or isinstance(value, bool) != (bool in wanted)):
            raise Invalid(f"{name} of the server's config is {str(value)[:60]!r}", f"it is {wanted[0].__name__}")
    return dict(found)


_TYPES: Mapping[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (float, int), bool: (bool,)}
