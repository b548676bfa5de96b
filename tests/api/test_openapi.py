"""The OpenAPI document: valid, whole, and true of what the server answers."""

import httpx
import jsonschema_rs
import pytest


def test_it_describes_every_type_and_marks_what_is_open(anonymous: httpx.Client) -> None:
    found = anonymous.get("/v1/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    say = found["paths"]["/v1/echo/say"]["post"]
    body = say["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["name"]
    assert body["properties"]["name"]["description"] == "what to name"
    assert body["properties"]["many"] == {"type": "array", "items": {"type": "string"}}
    assert "falaj echo say" in say["description"]
    assert found["paths"]["/health"]["get"]["security"] == []
    put = found["paths"]["/v1/echo/put"]["post"]
    assert "application/octet-stream" in put["requestBody"]["content"]
    assert {p["name"] for p in put["parameters"]} >= {"falaj-args", "Idempotency-Key"}


def test_its_schemas_are_schemas_and_fit_real_answers(anonymous: httpx.Client, http: httpx.Client) -> None:
    found = anonymous.get("/v1/openapi.json").json()
    for schema in found["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})
    whole = {"$ref": "#/components/schemas/Said", "components": found["components"]}
    said = http.post("/v1/echo/say", json={"name": "dataset:a/b", "label": "AE-PDPL", "inner": {"count": 1}}).json()
    jsonschema_rs.validate(whole, said)
    error = {"$ref": "#/components/schemas/Error", "components": found["components"]}
    jsonschema_rs.validate(error, http.post("/v1/echo/say", json={}).json())
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(whole, {"name": 3})
