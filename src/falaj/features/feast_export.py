"""Run under a Python that has Feast, never under ours: says as JSON what a Feast repository defines."""

import contextlib
import io
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def print_repository(folder: str, output_mark: str) -> None:
    """Print one line: the mark, then the JSON that features/feast_import.py reads."""
    root = Path(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        config = import_module("feast.repo_config").load_repo_config(root, root / "feature_store.yaml")
        sys.path.insert(0, folder)
        parsed = import_module("feast.repo_operations").parse_repo(root)
        views = [*parsed.feature_views, *getattr(parsed, "stream_feature_views", [])]
        description = {
            "project": config.project,
            "entities": [
                _describe_entity(definition) for definition in parsed.entities if not definition.name.startswith("__")
            ],
            "views": [_describe_view(definition, config) for definition in views],
            "demands": [_describe_on_demand_view(definition) for definition in parsed.on_demand_feature_views],
            "services": [_describe_service(definition) for definition in parsed.feature_services],
        }
    sys.stdout.write(f"{output_mark}{json.dumps(description)}\n")


def _describe_entity(entity: Any) -> dict[str, Any]:
    kind = getattr(entity.value_type, "name", "")
    return {
        "name": entity.name,
        "key": entity.join_key,
        "type": kind,
        "about": entity.description,
        "tags": dict(entity.tags),
    }


def _describe_view(feature_view: Any, config: Any) -> dict[str, Any]:
    special = [
        attribute
        for attribute in ("aggregations", "feature_transformation", "udf")
        if getattr(feature_view, attribute, None)
    ]
    stream = getattr(feature_view, "stream_source", None)
    return {
        "name": feature_view.name,
        "entities": [name for name in feature_view.entities if not name.startswith("__")],
        "keys": {field.name: _get_value_type(field) for field in feature_view.entity_columns},
        "features": [_describe_field(field) for field in feature_view.features],
        "ttl_s": feature_view.ttl.total_seconds() if feature_view.ttl else 0.0,
        "source": _describe_source(stream or feature_view.batch_source, feature_view.batch_source, config),
        "online": bool(feature_view.online),
        "owner": feature_view.owner or "",
        "about": feature_view.description or "",
        "tags": dict(feature_view.tags or {}),
        "special": ", ".join(special),
    }


def _describe_source(source: Any, batch_source: Any, config: Any) -> dict[str, Any]:
    file = batch_source if batch_source is not None else source
    kafka = getattr(source, "kafka_options", None)
    table, query = getattr(source, "table", "") or "", getattr(source, "query", "") or ""
    return {
        "kind": type(source).__name__,
        "name": source.name or "",
        "path": getattr(file, "path", "") or "",
        "event": source.timestamp_field or getattr(file, "timestamp_field", "") or "",
        "created": getattr(file, "created_timestamp_column", "") or "",
        "mapping": dict(getattr(file, "field_mapping", None) or {}),
        "query": query or (f"select * from {table}" if table else ""),  # noqa: S608  # nosec B608 - text for a definition
        "topic": getattr(kafka, "topic", "") or "",
        "servers": getattr(kafka, "kafka_bootstrap_servers", "") or "",
        "columns": _list_source_columns(file, config),
    }


def _list_source_columns(source: Any, config: Any) -> dict[str, str]:
    # Files only: a database would be asked, and the file may not be there; either is no reason to fail.
    if type(source).__name__ != "FileSource":
        return {}
    with contextlib.suppress(OSError, ValueError, ImportError):
        return {str(name): str(kind) for name, kind in source.get_table_column_names_and_types(config)}
    return {}


def _describe_on_demand_view(view: Any) -> dict[str, Any]:
    transformation = view.feature_transformation
    request = [field for source in view.source_request_sources.values() for field in source.schema]
    return {
        "name": view.name,
        "mode": str(getattr(view.mode, "value", view.mode)),
        "singleton": bool(getattr(view, "singleton", False)),
        "features": [_describe_field(field) for field in view.features],
        "inputs": [_describe_projection(projection) for projection in view.source_feature_view_projections.values()],
        "request": [_describe_field(field) for field in request],
        "text": getattr(transformation, "udf_string", "") or "",
    }


def _describe_service(service: Any) -> dict[str, Any]:
    picks = [_describe_projection(projection) for projection in service.feature_view_projections]
    texts = {"owner": service.owner or "", "about": service.description or "", "tags": dict(service.tags or {})}
    return {"name": service.name, "picks": picks, **texts}


def _describe_projection(projection: Any) -> dict[str, Any]:
    columns = [field.name for field in projection.features]
    return {
        "view": projection.name,
        "columns": columns,
        "alias": projection.name_alias or "",
        "keys": dict(projection.join_key_map or {}),
    }


def _describe_field(field: Any) -> list[str]:
    return [field.name, _get_value_type(field), getattr(field, "description", "") or ""]


def _get_value_type(field: Any) -> str:
    return str(field.dtype.to_value_type().name)


if __name__ == "__main__":
    print_repository(*sys.argv[1:3])
