"""A regulator asks a bank for evidence: what operates is shown with its proof, what does not is shown as not shown."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from falaj.audit import evidence_pack as log_pack
from falaj.core.errors import Denied
from tests.catalog.shelfhouse import model, pass_time, publish
from tests.documents import keep_contract
from tests.people import enroll, enroll_tenant
from tests.replica import FALAJ, Replica
from tests.servers.seaweed import SeaweedServer
from tests.town import LABEL, TEAM, Town, refusal

BLOB, TEXT = "blob:fraud/sample", "sha256:" + "1f" * 32


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """The same bank twice: SQLite and folders, then PostgreSQL and S3."""
    if request.param == "laptop":
        made = Town(tmp_path / "house")
    else:
        server: SeaweedServer = request.getfixturevalue("s3_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        new_s3: Callable[[], Any] = request.getfixturevalue("new_s3")
        bucket = f"{new_s3().url}?endpoint={server.endpoint}&region=us-east-1&allow_http=true"
        monkeypatch.setenv("FALAJ_BLOBS", bucket)
        made = Town(tmp_path / "house", store=request.getfixturevalue("new_postgres")())
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_regulator_asks(town: Town, tmp_path: Path) -> None:
    omar = town.as_("omar")
    people_heard(town)  # an assessment counts if it was approved before the model went into production
    into_production(town)
    over_the_border(town)
    everybody_reviewed(town)
    town.as_("sami").keys.rotate("tenant")

    first = omar.audit.evidence("AE-PDPL", from_="2026-01-01", to="2999-12-31", out=str(tmp_path / "pack.zip"))
    assert accepted(tmp_path / "pack.zip", tmp_path)
    shown = {control.id: (control.status, control.reason) for control in first.controls}
    assert {"C1", "C2", "C5", "C6", "C11", "C13"} <= set(first.operating), shown
    assert {"C12", "C14"} <= set(first.not_applicable), "nobody asked for anything, and nothing was breached"
    assert "C7" in first.exceptions, "the log began after the period did, and nobody was told"
    assert {"C3", "C9", "C18", "C24"} <= set(first.not_shown), (
        "nobody drilled, no quarter is over, and yet it was shown"
    )
    shown_inside(tmp_path / "pack.zip")

    moment = datetime.fromtimestamp(first.until, UTC).isoformat()
    omar.audit.evidence("AE-PDPL", from_="2026-01-01", to=moment, out=str(tmp_path / "again.zip"))
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "pack.zip").read_bytes()

    whole = (tmp_path / "pack.zip").read_bytes()
    place = whole.index(b'"status":"not-shown"') + len('"status":"')
    (tmp_path / "forged.zip").write_bytes(whole[:place] + b"operating" + whole[place + 9 :])
    assert not accepted(tmp_path / "forged.zip", tmp_path)
    mended = files_of(tmp_path / "forged.zip", strict=False)
    (tmp_path / "mended.zip").write_bytes(b"".join(log_pack.generate_zip(mended.items())))
    assert not accepted(tmp_path / "mended.zip", tmp_path), "checksums were mended, and the forgery stood"

    # The grant ends: what was lawful yesterday is an offender today, and every reading of the platform says so.
    grant = omar.zones.grants()[0].grant
    town.as_("sami").zones.revoke(f"grant:zones/{grant.id}", "the contract ended")
    counted = omar.audit.census()
    assert [(one.thing, one.zone) for one in counted.misplaced] == [(f"{BLOB}@v1", "eu-west")]
    assert "regime-not-cleared:AE-PDPL" in counted.misplaced[0].rules
    assert not omar.audit.findings().ok
    worse = omar.audit.evidence("AE-PDPL", out=str(tmp_path / "worse.zip"))
    assert "C5" in worse.exceptions
    assert accepted(tmp_path / "worse.zip", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_asked_from_far(tmp_path: Path) -> None:
    """The command line at another machine: the same errands over the wire, and exit codes that say what was found."""
    with Replica(tmp_path / "house") as server:
        boss = enroll_tenant(server.as_(), "bank", "fatima")
        token = enroll(server.as_(boss), "omar", ("auditor",), jurisdiction="AE")
        env = {"FALAJ_URL": server.url, "FALAJ_TOKEN": token}

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*FALAJ, *words, "--at", server.url, "--json"]
            return subprocess.run(
                command, env={**os.environ, **env}, capture_output=True, text=True, check=False, cwd=tmp_path
            )

        done = run("audit", "evidence", "--regime", "AE-CBUAE", "--from", "2026-01-01", "--out", "pack.zip")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["regime"] == "AE-CBUAE"
        assert run("audit", "verify", "pack.zip").returncode == 0
        assert run("audit", "census").returncode == 0
        assert json.loads(run("audit", "findings").stdout)["medium"] > 0
        assert {one["name"] for one in json.loads(run("audit", "review").stdout)} == {"fatima", "officer", "omar"}
        assert run("audit", "answer", "omar", "kept").returncode != 0


def into_production(town: Town) -> None:
    amal = town.as_("amal")
    data = publish(amal, label=LABEL)
    version = model(amal, "1", inputs={"train": data}, metrics={"auc": 0.9})
    town.as_("salem").catalog.require("gate:fraud/production", ("signature", "bias", "2 approvals"))
    town.as_("mona").catalog.attest(version, "bias", True, {"report": TEXT})
    asked = amal.catalog.promote(version, "production", reason="the first")
    assert isinstance(refusal(lambda: amal.approvals.give(asked.approval)), Denied)
    for name in ("badr", "dana"):
        town.as_(name).approvals.give(asked.approval, asked.digest)
    pass_time(town)


def over_the_border(town: Town) -> None:
    """One transfer is refused, then allowed by a grant with two approvers."""
    salem = town.as_("salem")
    salem.store.put(BLOB, [b"rows of people"], label=LABEL)
    assert isinstance(refusal(lambda: salem.store.copy(BLOB, to="eu-west")), Denied)
    grant = salem.zones.grant("AE-PDPL:23a", "ae-dubai", "eu-west", BLOB, ("fraud",), keep_contract(salem))
    for name in ("badr", "dana"):
        town.as_(name).approvals.give(str(grant.approval), grant.digest)
    salem.store.copy(BLOB, to="eu-west")


def everybody_reviewed(town: Town) -> None:
    for name in ("fatima", *TEAM):
        by = "sami" if name == "omar" else "omar"
        town.as_(by).audit.answer(name, "kept", "looked at with their manager")


def people_heard(town: Town) -> None:
    """What the desk of privacy keeps: a purpose, a consent, an assessment that another person approved."""
    dana = town.as_("dana")
    words = {"ar": "لكشف الاحتيال", "en": "To find fraud"}
    dana.privacy.add_purpose("fraud", "consent", ("AE-PDPL",), words, 365)
    salem = town.as_("salem")
    salem.privacy.consent("fraud", "784-1990-1234567-1", TEXT, "ar", "branch")
    content = {"description": "scores", "necessity": "the law", "risks": "bias", "measures": "tests"}
    salem.privacy.assess("dpia:fraud/scoring", "fraud", content, "2027-06-30")
    dana.privacy.approve("dpia:fraud/scoring", "acceptable")


def shown_inside(path: Path) -> None:
    files = files_of(path)
    rows = {name: [json.loads(line) for line in data.splitlines()] for name, data in files.items() if "jsonl" in name}
    moved = [row for row in rows["evidence/transfers.jsonl"] if row["verb"] == "store.copy"]
    assert [row["body"]["to"] for row in moved] == ["eu-west"]
    assert [row["body"]["action"] for row in rows["evidence/denied.jsonl"] if row["transfer"]] == ["store.copy"]
    assert {row["body"]["people"] for row in rows["evidence/promotions.jsonl"] if row["body"].get("people")} == {
        "badr,dana"
    }
    controls = json.loads(files["evidence/controls.json"])["controls"]
    operations = {each["measure"]: each for control in controls for each in control["operations"]}
    assert operations["copies-where-they-may-lie"]["exceptions"] == []
    assert rows["evidence/boms.jsonl"][0]["bom"]["bomFormat"] == "CycloneDX"
    assert [row["verb"] for row in rows["evidence/rotations.jsonl"]][:1] == ["keys.rotate"]
    everything = b"".join(files.values())
    assert b"784-1990" not in everything, "evidence carried the identifier of a person"
    assert b"rows of people" not in everything


def files_of(path: Path, strict: bool = True) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        if strict:
            return {name: archive.read(name) for name in archive.namelist()}
        raw = path.read_bytes()
        return {
            info.filename: raw[info.header_offset + 30 + len(info.filename) :][: info.file_size]
            for info in archive.infolist()
        }


def accepted(path: Path, folder: Path) -> bool:
    """What the regulator's own copy of the verifier says, in a process that knows nothing of Falaj."""
    kept = folder / "falaj_verify.py"
    if not kept.exists():
        kept.write_bytes(log_pack.VERIFIER_PATH.read_bytes())
    done = subprocess.run([sys.executable, "-I", str(kept), str(path)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0
