"""Run under a Python that has Feast, never under ours: says as JSON what a Feast repository defines."""

import contextlib
import io
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main(folder: str, mark: str) -> None:
    """Print one line: the mark, then the JSON that features/feast.py reads."""
    root = Path(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        config = import_module("feast.repo_config").load_repo_config(root, root / "feature_store.yaml")
        sys.path.insert(0, folder)
        found = import_module("feast.repo_operations").parse_repo(root)
        views = [*found.feature_views, *getattr(found, "stream_feature_views", [])]
        told = {
            "project": config.project,
            "entities": [_entity(one) for one in found.entities if not one.name.startswith("__")],
            "views": [_view(one, config) for one in views],
            "demands": [_demand(one) for one in found.on_demand_feature_views],
            "services": [_service(one) for one in found.feature_services],
        }
    sys.stdout.write(f"{mark}{json.dumps(told)}\n")


def _entity(one: Any) -> dict[str, Any]:
    kind = getattr(one.value_type, "name", "")
    return {"name": one.name, "key": one.join_key, "type": kind, "about": one.description, "tags": dict(one.tags)}


def _view(one: Any, config: Any) -> dict[str, Any]:
    special = [word for word in ("aggregations", "feature_transformation", "udf") if getattr(one, word, None)]
    stream = getattr(one, "stream_source", None)
    return {
        "name": one.name,
        "entities": [name for name in one.entities if not name.startswith("__")],
        "keys": {field.name: _type(field) for field in one.entity_columns},
        "features": [_field(field) for field in one.features],
        "ttl_s": one.ttl.total_seconds() if one.ttl else 0.0,
        "source": _source(stream or one.batch_source, one.batch_source, config),
        "online": bool(one.online),
        "owner": one.owner or "",
        "about": one.description or "",
        "tags": dict(one.tags or {}),
        "special": ", ".join(special),
    }


def _source(one: Any, batch: Any, config: Any) -> dict[str, Any]:
    file = batch if batch is not None else one
    kafka = getattr(one, "kafka_options", None)
    table, query = getattr(one, "table", "") or "", getattr(one, "query", "") or ""
    return {
        "kind": type(one).__name__,
        "name": one.name or "",
        "path": getattr(file, "path", "") or "",
        "event": one.timestamp_field or getattr(file, "timestamp_field", "") or "",
        "created": getattr(file, "created_timestamp_column", "") or "",
        "mapping": dict(getattr(file, "field_mapping", None) or {}),
        "query": query or (f"select * from {table}" if table else ""),  # noqa: S608  # nosec B608 - text for a definition
        "topic": getattr(kafka, "topic", "") or "",
        "servers": getattr(kafka, "kafka_bootstrap_servers", "") or "",
        "columns": _columns(file, config),
    }


def _columns(source: Any, config: Any) -> dict[str, str]:
    # Files only: a database would be asked, and the file may not be there; either is no reason to fail.
    if type(source).__name__ != "FileSource":
        return {}
    with contextlib.suppress(OSError, ValueError, ImportError):
        return {str(name): str(kind) for name, kind in source.get_table_column_names_and_types(config)}
    return {}


def _demand(one: Any) -> dict[str, Any]:
    made = one.feature_transformation
    request = [field for source in one.source_request_sources.values() for field in source.schema]
    return {
        "name": one.name,
        "mode": str(getattr(one.mode, "value", one.mode)),
        "singleton": bool(getattr(one, "singleton", False)),
        "features": [_field(field) for field in one.features],
        "inputs": [_pick(projection) for projection in one.source_feature_view_projections.values()],
        "request": [_field(field) for field in request],
        "text": getattr(made, "udf_string", "") or "",
    }


def _service(one: Any) -> dict[str, Any]:
    picks = [_pick(projection) for projection in one.feature_view_projections]
    words = {"owner": one.owner or "", "about": one.description or "", "tags": dict(one.tags or {})}
    return {"name": one.name, "picks": picks, **words}


def _pick(one: Any) -> dict[str, Any]:
    columns = [field.name for field in one.features]
    return {"view": one.name, "columns": columns, "alias": one.name_alias or "", "keys": dict(one.join_key_map or {})}


def _field(one: Any) -> list[str]:
    return [one.name, _type(one), getattr(one, "description", "") or ""]


def _type(one: Any) -> str:
    return str(one.dtype.to_value_type().name)


if __name__ == "__main__":
    main(*sys.argv[1:3])
