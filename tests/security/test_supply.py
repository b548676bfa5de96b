"""Licences, advisories, the SBOM, and that a signed release cannot be changed unseen."""

import json
from importlib import metadata
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.security import release, supply


def _part(folder: Path, name: str, version: str, licence: str) -> metadata.Distribution:
    about = folder / f"{name}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{licence}\n")
    return metadata.Distribution.at(about)


def test_a_licence_that_is_not_on_the_list_is_told(tmp_path: Path) -> None:
    parts = {
        "good": _part(tmp_path, "good", "1", "License-Expression: MIT OR (Apache-2.0 AND BSD-3-Clause)"),
        "bad": _part(tmp_path, "bad", "1", "License-Expression: MIT AND AGPL-3.0-only"),
        "psycopg": _part(tmp_path, "psycopg", "1", "License-Expression: GPL-3.0-only"),
        "none": _part(tmp_path, "none", "1", ""),
    }
    assert [said.partition(" ")[0] for said in supply.licence_faults(parts)] == ["bad", "psycopg", "none"]


@pytest.mark.parametrize(
    ("version", "affected"),
    [("0.9", False), ("1.0", True), ("1.4", True), ("1.5", False), ("2.0", True), ("2.2", False)],
)
def test_ranges_are_read_as_osv_writes_them(version: str, affected: bool) -> None:
    events = [{"introduced": "1.0"}, {"fixed": "1.5"}, {"introduced": "2.0"}, {"last_affected": "2.1"}]
    assert supply.affects({"ranges": [{"type": "ECOSYSTEM", "events": events}]}, version) is affected
    assert supply.affects({"versions": [version]}, version)


def test_an_export_is_read_and_its_age_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"good": _part(tmp_path, "good", "1.2", "")}
    hit = {"package": {"name": "Good"}, "versions": ["1.2"]}
    export = tmp_path / "export"
    export.mkdir()
    (export / "a.json").write_text(json.dumps({"id": "X-1", "affected": [hit]}))
    (export / "b.json").write_text(json.dumps({"id": "X-2", "withdrawn": "2026", "affected": [hit]}))
    monkeypatch.setenv("FALAJ_RELEASE", "1")
    assert [said.split(":")[0] for said in supply.known_faults(parts)] == ["no export of advisories"]
    monkeypatch.setenv("FALAJ_ADVISORIES", str(export))
    assert [said.strip() for said in supply.known_faults(parts)] == ["good 1.2: X-1"]


def test_the_sbom_is_the_same_twice_and_names_everything() -> None:
    made = supply.sbom()
    assert made == supply.sbom()
    names = {one["name"] for one in made["components"]}
    assert {"cryptography", "msgspec", "uvicorn"} <= names
    assert {"pytest", "falaj"}.isdisjoint(names)
    refs = [one["bom-ref"] for one in made["components"]]
    assert len(refs) == len(set(refs))
    assert made["dependencies"][0]["dependsOn"] == refs


def test_a_release_that_was_changed_is_refused(tmp_path: Path) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    public, foreign = (
        one.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo) for one in (key, other)
    )
    (tmp_path / "falaj-1-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / release.SBOM).write_text("{}")
    (tmp_path / release.PROVENANCE).write_text(json.dumps(release.statement(tmp_path, "0" * 40)))
    release.sign(tmp_path, pem)
    assert release.verify(tmp_path, public) == ""
    assert "not signed" in release.verify(tmp_path, foreign)
    (tmp_path / "more.whl").write_bytes(b"")
    assert "not those" in release.verify(tmp_path, public)
    (tmp_path / "more.whl").unlink()
    (tmp_path / release.SBOM).write_text("[]")
    assert "not those" in release.verify(tmp_path, public)
    (tmp_path / release.ENVELOPE).write_text("{}")
    assert "cannot be read" in release.verify(tmp_path, public)
