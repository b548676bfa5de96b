"""Evidence packs: the same twice, accepted by the offline verifier as they are, refused with any one byte changed."""

import json
import random
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from falaj.audit import evidence_pack as log_pack
from falaj.comply import platform_snapshot
from falaj.comply.records import EvidenceReport
from falaj.core.errors import Invalid
from tests.audit.house import verify
from tests.audit.packs import check
from tests.catalog.shelfhouse import model
from tests.town import Town

SAMPLES = 60
TODAY = datetime.now(UTC).date().isoformat()


def files_of(path: str) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rows_of(packed: EvidenceReport, name: str) -> list[Any]:
    data = files_of(packed.out)[f"evidence/{name}"]
    return list(json.loads(data)) if name.endswith(".json") else [json.loads(line) for line in data.splitlines()]


def test_an_auditor_accepts_it_offline(packed: EvidenceReport) -> None:
    code, report = verify(Path(packed.out))
    assert (code, report["ok"]) == (0, True), report
    assert (report["evidence"]["by"], report["events"]) == ("omar", packed.events)


def test_the_same_period_gives_the_same_bytes(town: Town, packed: EvidenceReport, tmp_path: Path) -> None:
    moment = datetime.fromtimestamp(packed.until, UTC).isoformat()
    again = town.as_("omar").audit.evidence("AE-PDPL", to=moment, out=str(tmp_path / "again.zip"))
    assert again.until == packed.until
    assert (tmp_path / "again.zip").read_bytes() == Path(packed.out).read_bytes()


def test_every_changed_byte_is_found(packed: EvidenceReport, tmp_path: Path) -> None:
    whole, path, chance = Path(packed.out).read_bytes(), tmp_path / "changed.zip", random.Random(7)
    with zipfile.ZipFile(packed.out) as archive:
        starts = [info.header_offset for info in archive.infolist()]
    for place in [*starts, *(chance.randrange(len(whole)) for _ in range(SAMPLES)), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert not check(path)["ok"], f"byte {place} was changed and nobody saw it"


@pytest.mark.parametrize("name", ["evidence.json", "evidence.proof.json", "evidence/controls.json", "manifest.json"])
def test_whoever_mends_the_checksums_is_found_too(packed: EvidenceReport, tmp_path: Path, name: str) -> None:
    files, chance, path = files_of(packed.out), random.Random(name), tmp_path / "changed.zip"
    for _ in range(20):
        data, place = files[name], chance.randrange(len(files[name]))
        changed = data[:place] + bytes([data[place] ^ chance.choice((1, 2, 32))]) + data[place + 1 :]
        path.write_bytes(b"".join(log_pack.generate_zip((files | {name: changed}).items())))
        assert not check(path)["ok"], f"byte {place} of {name} was changed and nobody saw it"


def test_a_hash_is_written_in_one_way_only(packed: EvidenceReport, tmp_path: Path) -> None:
    files, path = files_of(packed.out), tmp_path / "changed.zip"
    proof = json.loads(files["evidence.proof.json"])
    proof["hashes"] = [text.upper() for text in proof["hashes"]]
    assert proof["hashes"], "the proof has no path to change"
    files["evidence.proof.json"] = json.dumps(proof, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    path.write_bytes(b"".join(log_pack.generate_zip(files.items())))
    assert not check(path)["ok"]


@pytest.mark.parametrize("taken", ["evidence/absent", "evidence/census.json", "evidence.json", "evidence.proof.json"])
def test_no_file_is_added_or_taken(packed: EvidenceReport, tmp_path: Path, taken: str) -> None:
    files, path = files_of(packed.out), tmp_path / "changed.zip"
    if files.pop(taken, None) is None:
        files[taken] = b"{}"
    path.write_bytes(b"".join(log_pack.generate_zip(files.items())))
    assert not check(path)["ok"]


def test_evidence_of_one_log_is_none_of_another(packed: EvidenceReport, town: Town, tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    town.as_("omar").audit.evidence("EU-GDPR", out=str(other))
    mine, theirs = files_of(packed.out), files_of(str(other))
    mixed = {name: data for name, data in theirs.items() if not name.startswith("evidence")}
    mixed |= {name: data for name, data in mine.items() if name.startswith("evidence")}
    path = tmp_path / "mixed.zip"
    path.write_bytes(b"".join(log_pack.generate_zip(mixed.items())))
    assert not check(path)["ok"]


def test_absent_evidence_is_shown_in_every_summary(packed: EvidenceReport) -> None:
    files = files_of(packed.out)
    assert {"C3", "C9", "C18"} <= set(packed.not_shown)
    by_status = (packed.operating, packed.exceptions, packed.attested, packed.not_shown, packed.not_applicable)
    assert sorted(each for ids in by_status for each in ids) == sorted(control.id for control in packed.controls)
    arabic, english = (files[f"evidence/summary.{language}.md"].decode() for language in ("ar", "en"))
    page = files["evidence/summary.html"].decode()
    assert "evidence, not certification" in english
    assert "وليست شهادة" in arabic
    assert 'dir="rtl"' in page
    for one in packed.controls:
        if one.status in ("not-shown", "operating-with-exceptions"):
            assert f"**{one.id} " in english
            assert f"**{one.id} " in arabic
    red, amber = (page.count(f'<td class="{tone}">') for tone in ("bad", "warning"))
    assert red == 2 * 2 * len(packed.not_shown), "in two tables of each language"
    assert amber >= 2 * 2 * len(packed.exceptions)
    assert "assumed" in english
    assert "not issued" in english


def test_promotions_name_author_and_approvers_and_nobody_approved_the_own(packed: EvidenceReport) -> None:
    done = [row for row in rows_of(packed, "promotions.jsonl") if row["body"].get("state") == "done"]
    assert [(row["body"]["asker"], row["body"]["people"]) for row in done] == [("amal", "badr,dana")]
    told = json.loads(files_of(packed.out)["evidence/controls.json"])
    operations = {each["measure"]: each for control in told["controls"] for each in control["operations"]}
    assert operations["inventory-with-owner"]["samples"] >= 1
    assert operations["keys-within-their-age"]["exceptions"] == []
    assert rows_of(packed, "boms.jsonl")[0]["bom"]["bomFormat"] == "CycloneDX"
    assert rows_of(packed, "census.json")[0]["ok"]
    assert all("material" not in row for row in rows_of(packed, "keys.jsonl"))


def test_whoever_may_not_read_gets_no_evidence_by_it(town: Town, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="audit"):
        town.as_("amal").audit.evidence("AE-PDPL", out=str(tmp_path / "x.zip"))
    assert not (tmp_path / "x.zip").exists()


def test_files_are_enclosed_under_their_own_digest(town: Town, tmp_path: Path) -> None:
    (tmp_path / "SBOM of falaj.json").write_text("{}")
    made = town.as_("omar").audit.evidence(
        "ISO-27001", enclose=(f"sbom@{TODAY}={tmp_path / 'SBOM of falaj.json'}",), out=str(tmp_path / "iso.zip")
    )
    assert "C16" in made.operating
    operations = {each.measure: each for control in made.controls for each in control.operations}
    promoted = operations["production-promotions-approved-by-another-person"]
    assert (promoted.samples, promoted.exceptions) == (1, ())
    assert operations["approvals-by-others"].exceptions == ()
    assert "evidence/enclosed-sbom-of-falaj.json" in files_of(made.out)
    assert check(tmp_path / "iso.zip")["ok"]


def test_times_are_checked(town: Town, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no day"):
        town.as_("omar").audit.evidence("AE-PDPL", from_="yesterday", out=str(tmp_path / "x.zip"))
    with pytest.raises(Invalid, match="ends before"):
        town.as_("omar").audit.evidence("AE-PDPL", from_="2026-02-01", to="2026-01-01", out=str(tmp_path / "x.zip"))


def test_lists_that_are_longer_than_a_page_are_told_whole(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    amal = town.as_("amal")
    amal.catalog.promote(model(amal, "2", metrics={"auc": 0.8}), "production", reason="the second")
    whole = platform_snapshot.PlatformSnapshot(town.as_("omar")).rows("approvals.jsonl")
    assert whole is not None
    assert len(whole) >= 2
    monkeypatch.setattr(platform_snapshot, "PAGE_SIZE", 1)
    assert platform_snapshot.PlatformSnapshot(town.as_("omar")).rows("approvals.jsonl") == whole
