"""Statements of origin against the standards' own words: in-toto's and SLSA's messages, CycloneDX's schema."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.audit.records import LineageEdge, LineageGraph, LineageNode
from falaj.catalog import provenance_statements
from falaj.catalog.provenance_statements import HIDDEN_NAME, ProvenanceAct, ProvenanceOrigin, VersionProvenance
from falaj.catalog.records import CatalogVersion, CodeOrigin, ModelCard
from falaj.core.label import Label
from falaj.core.ref import Ref
from tests.servers import peers
from tests.servers.process import Missing

LABEL = Label.parse("AE-PDPL,sensitive,purpose=fraud,category=financial")
MODEL, DATA = Ref.parse("model:fraud/scorer@v7"), Ref.parse("dataset:fraud/tx@v3")
CARD = ModelCard(
    format="safetensors",
    signature={"inputs": [{"name": "amount", "type": "double"}], "outputs": {"type": "tensor"}},
    metrics={"auc": 0.93, "f1": 0.5},
    params={"depth": "6", "note": "\x1b[2Jclear\nthe screen"},
    environment={"python": "3.11.7", "platform": "Linux", "numpy": "2.1.0", "a b/c@d": "1+x"},
    command=("python", "train.py"),
    code=CodeOrigin(
        Ref.parse("code:fraud/train@v2"), "c0ffee" * 6 + "beef", "https://git.example/f.git", "sha256:" + "0" * 64
    ),
    run="run:fraud/night-7",
)
VERSION = CatalogVersion(
    MODEL, "b3:" + "a" * 64, 2, 1234, "production", LABEL, ("ae-dubai",), "amal", 1_790_000_000.0,
    aliases=("champion", "production"), inputs={"training": DATA}, card=CARD,
)  # fmt: skip
TOLD = VersionProvenance(
    VERSION,
    (
        ProvenanceOrigin("training", str(DATA), "b3:" + "b" * 64, LABEL),
        ProvenanceOrigin("code", "code:fraud/train@v2", "b3:" + "c" * 64, Label()),
        ProvenanceOrigin("salaries", HIDDEN_NAME),
    ),
    (
        ProvenanceAct("publish", "amal", 1_790_000_000.0),
        ProvenanceAct("promote production", "mona", 1_790_000_100.0, ("badr", "dana"), "better on every slice"),
    ),
    {"config.json": "1" * 64, "نموذج.safetensors": "2" * 64},
    "valid",
    "d" * 64,
    LineageGraph(
        str(MODEL),
        (
            LineageNode(str(MODEL), 0),
            LineageNode(str(DATA), -1),
            LineageNode("hidden-3", -1, True),
            LineageNode("endpoint:fraud/score@r1", 1),
        ),
        (LineageEdge(str(DATA), str(MODEL), "catalog.publish", "e", 1.0),),
    ),
)
CASES = {
    "all of it": TOLD,
    "nothing known": replace(
        TOLD, version=replace(VERSION, card=None), origins=(), deeds=(), files={}, signed="none", key=""
    ),
    "two roles, no remote": replace(
        TOLD,
        version=replace(VERSION, card=replace(CARD, code=replace(CARD.code, remote=""))),
        origins=(*TOLD.origins, replace(TOLD.origins[0], role="test")),
    ),
    "code-bearing": replace(TOLD, version=replace(VERSION, card=replace(CARD, code_bearing=True), label=Label())),
    "a dataset": replace(TOLD, version=replace(VERSION, ref=DATA, card=None), files={}, signed="none", key=""),
    "a program": replace(TOLD, version=replace(VERSION, ref=Ref.parse("code:fraud/train@v2"), card=None), files={}),
}
_SLSA = """
import json, sys
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
for path in sys.argv[1:]:
    told = json.load(open(path))
    made = json_format.ParseDict(told, statement_pb2.Statement())
    Statement.copy_from_pb(made).validate()
    json_format.ParseDict(told["predicate"], provenance_pb2.Provenance())
"""
_CYCLONEDX = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
for path in sys.argv[1:]:
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(path).read())
    if wrong:
        sys.exit(f"{path}: {wrong!r}")
"""
CYCLONEDX = ("cyclonedx-python-lib[json-validation]==11.12.0",)


def judge(tmp_path: Path, peer: tuple[str, ...], script: str, told: Callable[[VersionProvenance], str]) -> None:
    """Every case before the standard's own reader, in one process: such readers start slowly."""
    try:
        python = peers.peer(*peer) / "python"
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    paths = []
    for name, case in CASES.items():
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(told(case))
    done = subprocess.run([python, "-c", script, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_slsa_is_what_in_toto_reads(tmp_path: Path) -> None:
    judge(tmp_path, ("model-signing", *peers.MODEL_SIGNING), _SLSA, provenance_statements.to_slsa)


def test_the_bill_of_materials_fits_its_schema(tmp_path: Path) -> None:
    judge(tmp_path, ("cyclonedx", *CYCLONEDX), _CYCLONEDX, provenance_statements.to_cyclonedx)


def test_slsa_names_every_file_and_everything_it_was_made_from() -> None:
    told: dict[str, Any] = json.loads(provenance_statements.to_slsa(TOLD))
    assert {one["name"]: one["digest"]["sha256"] for one in told["subject"]} == TOLD.files
    definition = told["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["command"] == ["python", "train.py"]
    needs = {one["name"]: one for one in definition["resolvedDependencies"]}
    assert needs["training"] == {"name": "training", "uri": f"falaj:{DATA}", "digest": {"falajTree": "b" * 64}}
    assert needs["salaries"] == {"name": "salaries", "uri": "falaj:hidden"}
    assert needs["source"]["digest"] == {"gitCommit": "c0ffee" * 6 + "beef"}
    assert needs["source"]["annotations"] == {"uncommitted": "sha256:" + "0" * 64}
    assert needs["numpy"]["uri"] == "pkg:pypi/numpy@2.1.0"
    assert not {"python", "platform"} & set(needs)


def test_the_bill_of_materials_says_what_is_proved_and_what_is_declared() -> None:
    told: dict[str, Any] = json.loads(provenance_statements.to_cyclonedx(TOLD))
    me = told["metadata"]["component"]
    assert (me["type"], me["group"], me["name"], me["version"]) == ("machine-learning-model", "fraud", "scorer", "v7")
    properties = {one["name"]: one["value"] for one in me["properties"]}
    assert "declared by the publisher" in properties["falaj:declared"]
    assert properties["falaj:signature"] == "valid"
    card = me["modelCard"]
    assert card["modelParameters"]["datasets"] == [{"ref": str(DATA)}]
    assert card["quantitativeAnalysis"]["performanceMetrics"][0] == {"type": "auc", "value": "0.93"}
    assert card["considerations"]["useCases"] == ["fraud"]
    data = next(one for one in told["components"] if one["bom-ref"] == str(DATA))
    assert data["data"][0]["classification"] == "sensitive"
    assert data["data"][0]["sensitiveData"] == ["financial"]
    assert set(told["dependencies"][0]["dependsOn"]) == {one["bom-ref"] for one in told["components"]}
    assert provenance_statements.to_cyclonedx(TOLD) == provenance_statements.to_cyclonedx(TOLD), (
        "asked twice, told the same"
    )


def test_text_cannot_be_made_to_lie_by_what_is_in_it() -> None:
    told = provenance_statements.to_plain_text(TOLD)
    assert "\x1b" not in told
    assert "note = \\x1b[2Jclear\\nthe screen" in told
    assert "model:fraud/scorer@v7  (production, champion)" in told
    assert "2026-09-21T14:15:00Z promote production by mona, approved by badr, dana: better on every slice" in told
    assert "salaries = hidden" in told
    assert "endpoint:fraud/score@r1" in told
    for case in CASES.values():
        assert provenance_statements.to_plain_text(case).count(str(case.version.ref)) >= 1


def test_json_holds_all_of_it() -> None:
    told = json.loads(provenance_statements.to_json_text(TOLD))
    assert told["version"]["card"]["params"]["depth"] == "6"
    assert told["deeds"][1]["approved_by"] == ["badr", "dana"]
    assert told["consumers"] == ["endpoint:fraud/score@r1"]


def test_what_has_two_roles_is_one_thing_with_both() -> None:
    told = json.loads(provenance_statements.to_cyclonedx(CASES["two roles, no remote"]))
    refs = [one["bom-ref"] for one in told["components"]]
    assert len(refs) == len(set(refs))
    assert told["dependencies"][0]["dependsOn"] == refs
    assert {"name": "falaj:role", "value": "training, test"} in told["components"][0]["properties"]
    assert told["metadata"]["component"]["modelCard"]["modelParameters"]["datasets"] == [{"ref": str(DATA)}]


@pytest.mark.parametrize(
    ("remote", "uri"),
    [
        ("https://git.example/f.git", "git+https://git.example/f.git@"),
        ("git@git.example:bank/f.git", "git+ssh://git@git.example/bank/f.git@"),
        ("/srv/my git/f.git", "git+file:///srv/my%20git/f.git@"),
        ("../f.git", ""),
        ("", ""),
    ],
)
def test_addresses_are_addresses(remote: str, uri: str) -> None:
    card = replace(CARD, code=replace(CARD.code, remote=remote), environment={"Typing_Extensions": "4.16"})
    told = json.loads(provenance_statements.to_slsa(replace(TOLD, version=replace(VERSION, card=card))))
    source, package = told["predicate"]["buildDefinition"]["resolvedDependencies"][-2:]
    assert source.get("uri", "") == (uri and uri + CARD.code.commit)
    assert source["digest"] == {"gitCommit": CARD.code.commit}
    assert package == {"name": "Typing_Extensions", "uri": "pkg:pypi/typing-extensions@4.16"}
