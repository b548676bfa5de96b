"""Evidence of a real platform: replaced models are sampled; sealed documents attest by kind, date and digest."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.comply.records import ATTESTED, NOT_SHOWN, EvidenceReport, MeasureOperation
from falaj.core.errors import Invalid
from tests.audit.packs import check
from tests.catalog.shelfhouse import model, pass_time
from tests.comply.test_pack import TODAY, files_of, rows_of
from tests.documents import CONTRACT, CONTRACT_BYTES, keep_contract
from tests.town import Town, refusal

TRAINING = "document:hr/courses"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Two versions in production one after the other; only the second was tested, and that before its promotion."""
    opened = Town(tmp_path_factory.mktemp("sampling") / "home")
    amal = opened.as_("amal")
    first, second = (model(amal, number, metrics={"auc": 0.9}) for number in ("1", "2"))
    amal.catalog.attest(second, "bias", passed=True)
    for version in (first, second):
        promotion = amal.catalog.promote(version, "production", reason="better")
        for name in ("badr", "dana"):
            opened.as_(name).approvals.give(promotion.approval, promotion.digest)
        pass_time(opened)
    amal.catalog.attest(first, "bias", passed=True)
    yield opened
    opened.close()


def pack(
    town: Town, folder: Path, regime: str = "EU-AI-ACT", **more: Any
) -> tuple[EvidenceReport, dict[str, MeasureOperation]]:
    made = town.as_("omar").audit.evidence(regime, out=str(folder / "pack.zip"), **more)
    return made, {operation.measure: operation for control in made.controls for operation in control.operations}


def test_a_version_that_was_replaced_is_sampled_at_its_entry(town: Town, tmp_path: Path) -> None:
    made, operations = pack(town, tmp_path)
    signed, tested = (operations[f"production-models-{what}"] for what in ("signed", "with-a-passed-bias-test"))
    assert (signed.samples, signed.exceptions) == (2, ())
    assert tested.samples == 2
    (untested,) = tested.exceptions
    assert untested.startswith("model:fraud/scorer@v1 ("), "it was tested only after it had been replaced"
    rows = rows_of(made, "deployments.jsonl")
    rows.sort(key=lambda row: float(row["since"]))
    assert [(row["ref"], bool(row["until"]), row["approved_by"]) for row in rows] == [
        ("model:fraud/scorer@v1", True, ["badr", "dana"]), ("model:fraud/scorer@v2", False, ["badr", "dana"]),
    ]  # fmt: skip
    labels = [row["ref"] for row in rows_of(made, "labels.jsonl")]
    assert {"model:fraud/scorer@v1", "model:fraud/scorer@v2"} <= set(labels)


def test_a_sealed_document_attests_by_its_declared_kind(town: Town, tmp_path: Path) -> None:
    salem = town.as_("salem")
    salem.approvals.add_document("document:hr/training-notes", [b"notes"], "Training notes", label="open")
    _, before = pack(town, tmp_path, "ISO-27001")
    assert before["training records"].samples == 0, "a word in a name declares nothing"
    stored = salem.approvals.add_document(TRAINING, [b"courses"], "Courses", label="open", kind="training")
    made, operations = pack(town, tmp_path, "ISO-27001")
    assert operations["training records"].evidence == (f"{TRAINING} {stored.digest[:19]}",)
    assert {control.id: control.status for control in made.controls}["C37"] == ATTESTED
    assert check(tmp_path / "pack.zip")["ok"]
    (attached,) = [row for row in rows_of(made, "attached.jsonl") if row["kind"]]
    assert (attached["name"], attached["digest"]) == (TRAINING, stored.digest)
    assert b"courses" in files_of(made.out).values()
    other = refusal(
        lambda: salem.approvals.add_document(TRAINING, [b"courses"], "Courses", label="open", kind="policy")
    )
    assert "another kind" in other.message


def test_a_document_that_cannot_be_opened_attests_nothing(town: Town, tmp_path: Path) -> None:
    salem, name = town.as_("salem"), "document:hr/physical"
    salem.approvals.add_document(name, [b"doors"], "Doors", label="open", kind="physical")
    town.as_("dana").approvals.remove_document(name, "typed wrongly")
    _, operations = pack(town, tmp_path, "ISO-27001")
    assert operations["physical security report"].samples == 0


@pytest.mark.parametrize(
    ("declared", "samples"), [("policy@{day}=", 1), ("policy@2020-01-01=", 0), ("policy@2099-01-01=", 0), ("", 0)]
)
def test_an_enclosed_file_attests_where_kind_and_day_were_declared(
    town: Town, tmp_path: Path, declared: str, samples: int
) -> None:
    (tmp_path / "policy.pdf").write_bytes(b"the policy")
    made, operations = pack(
        town, tmp_path, "ISO-27001", enclose=(f"{declared.format(day=TODAY)}{tmp_path}/policy.pdf",)
    )
    assert operations["approved policies"].samples == samples
    told = json.loads(files_of(made.out)["evidence/controls.json"])
    status = {control["id"]: control["status"] for control in told["controls"]}["C35"]
    assert status == (ATTESTED if samples else NOT_SHOWN)
    assert files_of(made.out)["evidence/enclosed-policy.pdf"] == b"the policy"


@pytest.mark.parametrize(
    ("declared", "message"), [("wish@2026-01-01", "no kind of document"), ("policy@2026-13-01", "no day")]
)
def test_a_wrong_declaration_is_refused(town: Town, tmp_path: Path, declared: str, message: str) -> None:
    (tmp_path / "policy.pdf").write_bytes(b"the policy")
    with pytest.raises(Invalid, match=message):
        pack(town, tmp_path, "ISO-27001", enclose=(f"{declared}={tmp_path}/policy.pdf",))


def test_a_document_that_a_grant_of_the_period_rested_on_is_missed_once_it_was_removed(
    town: Town, tmp_path: Path
) -> None:
    salem = town.as_("salem")
    state = salem.zones.grant("AE-PDPL:23a", "ae-dubai", "eu-west", "blob:fraud/x", ("fraud",), keep_contract(salem))
    for name in ("badr", "dana"):
        town.as_(name).approvals.give(str(state.approval), state.digest)
    made, operations = pack(town, tmp_path, "AE-PDPL")
    granted, notices = operations["transfer-grants-with-documents"], operations["officer-notices-seen"]
    assert (granted.samples, granted.exceptions) == (1, ())
    assert (notices.samples, notices.exceptions) == (1, ()), "her voice shows that she has seen it"
    assert CONTRACT_BYTES in files_of(made.out).values()
    town.as_("dana").zones.revoke(f"grant:zones/{state.grant.id}", "over")
    salem.approvals.remove_document(CONTRACT, "the contract has ended")
    made, operations = pack(town, tmp_path, "AE-PDPL")
    assert operations["transfer-grants-with-documents"].exceptions == (f"{state.grant.id}: contract is not kept",)
    missing = json.loads(files_of(made.out)["evidence/missing.json"])
    assert missing[f"document-{state.grant.documents['contract'].removeprefix('sha256:')[:16]}"].startswith(
        "contract of"
    )
