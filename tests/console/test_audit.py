"""The audit pages: searching, one event with its proof, checkpoints, "verify now", and what an auditor takes away."""

import hashlib
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import expect

from falaj.audit.merkle import verify_inclusion
from falaj.audit.records import LogEntry
from falaj.console.pages.audit.log_search import parse_day, summarize_entry
from falaj.console.pages.audit.proof_path import compute_path
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from tests.console.ground import Ground
from tests.servers.browser import Chromium


def tree(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, as it is written there."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + tree(leaves[:half]) + tree(leaves[half:])).digest()


def siblings(leaves: list[bytes], index: int) -> list[bytes]:
    if len(leaves) == 1:
        return []
    half = 1 << (len(leaves) - 1).bit_length() - 1
    if index < half:
        return [*siblings(leaves[:half], index), tree(leaves[half:])]
    return [*siblings(leaves[half:], index - half), tree(leaves[:half])]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_a_path_leads_from_every_event_to_the_root(size: int) -> None:
    leaves = [hashlib.sha256(bytes([n])).digest() for n in range(size)]
    root = tree(leaves)
    for index, leaf in enumerate(leaves):
        hashes = siblings(leaves, index)
        assert verify_inclusion(leaf, index, size, hashes, root)
        steps = compute_path(leaf.hex(), index, size, [one.hex() for one in hashes])
        assert (steps[-1].node if steps else leaf.hex()) == root.hex()
        assert size == 1 or compute_path(leaf.hex(), index, size, [one.hex() for one in hashes[1:]]) == []


def test_a_day_is_a_day_of_the_gulf() -> None:
    assert parse_day("2026-11-16") == 1794772800.0  # 20:00 of the day before in Greenwich
    assert parse_day("2026-11-16", is_end=True) - parse_day("2026-11-16") == 86_400
    assert parse_day("") == 0.0
    with pytest.raises(Invalid):
        parse_day("soon")


def test_the_gist_leaves_out_the_facts_of_the_decision() -> None:
    def entry(**body: str) -> LogEntry:
        return LogEntry("1", 0.0, "x.y", "amal", Ref("job", "a", "b", "r1"), "dxb", body=body)

    assert summarize_entry(entry(facts="{}", kind="person", empty="")) == "kind=person"
    assert len(summarize_entry(entry(reason="long " * 100))) == 80


def test_the_log_is_searched_by_thing_act_person_and_time(platform: Ground) -> None:
    omar = platform.visitor("omar")
    rows = omar.get("/console/audit?about=secret:fraud/warehouse&actor=mona&verb=secrets.put").main.all("tbody tr")
    assert len(rows) == 1
    assert "secrets.put" in rows[0].text
    (event,) = platform.as_("omar").audit.log(about="secret:fraud/warehouse", verb="secrets.put").entries
    assert len(omar.get(f"/console/audit?about={event.request}").main.all("tbody tr")) >= 1
    assert "Nothing in the log fits" in omar.get("/console/audit?to=2020-01-01").text
    assert "Nothing in the log fits" in omar.get("/console/audit?from=2999-01-01").text
    for wrong in ("from=soon", "about=::", "page=x"):
        seen = omar.get(f"/console/audit?{wrong}")
        assert (seen.status, "Not valid" in seen.text) == (200, True)
    assert (
        "one of these roles may: dpo, security-officer, auditor" in platform.visitor("amal").get("/console/audit").text
    )


def test_pages_of_the_log_follow_each_other(platform: Ground) -> None:
    omar, seen = platform.visitor("omar"), list[str]()
    page = "/console/audit?actor=amal"
    for _ in range(3):
        found = omar.get(page)
        seen += [row["id"] for row in found.main.all("tbody tr")]
        page = found.main.one("a[rel=next]")["href"]
    assert len(seen) == len(set(seen)) == 150
    assert seen == [f"e{one.id}" for one in platform.as_("omar").audit.log(actor="amal", limit=150).entries]


def test_an_event_has_its_decision_and_the_replay_agrees(platform: Ground) -> None:
    omar = platform.visitor("omar")
    (event,) = platform.as_("omar").audit.log(verb="secrets.put", limit=1).entries
    seen = omar.get(f"/console/audit/event/{event.id}")
    assert event.id in seen.text
    (asked,) = [one for one in platform.as_("omar").audit.log(actor="amal", limit=500).entries if one.policy][:1]
    (replay,) = [
        one for one in omar.get(f"/console/audit/event/{asked.id}").main.all("a.button") if "explain" in one["href"]
    ]
    assert "the very same decision" in omar.get(replay["href"]).text
    assert omar.get("/console/audit/event/0000").status == 404


def test_a_proof_is_shown_and_downloaded_and_holds_offline(platform: Ground, tmp_path: Path) -> None:
    omar = platform.visitor("omar")
    (event,) = platform.as_("omar").audit.log(verb="people.suspend", limit=1).entries
    seen = omar.get(f"/console/audit/event/{event.id}?tab=proof")
    assert "its hash leads to the signed root" in seen.text
    proof = omar.get(f"/console/audit/event/{event.id}/proof")
    assert proof.headers["content-disposition"] == f'attachment; filename="proof-{event.id}.json"'
    (tmp_path / "proof.json").write_text(proof.html)
    verifier = omar.get("/console/audit/verifier")
    assert 'filename="falaj_verify.py"' in verifier.headers["content-disposition"]
    (tmp_path / "falaj_verify.py").write_text(verifier.html)
    key = platform.as_("omar").audit.checkpoints(limit=1)[0].key
    assert f"python falaj_verify.py proof-{event.id}.json --key {key}" in seen.text
    done = subprocess.run(
        [sys.executable, "-I", "falaj_verify.py", "proof.json", "--key", key],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_checkpoints_prove_that_the_log_only_grew(platform: Ground) -> None:
    omar = platform.visitor("omar")
    first = platform.as_("omar").audit.seal()
    omar.press("/console/audit/verify", "audit", "seal")
    assert (
        f"The log of {first.size} events is the beginning of the log of"
        in omar.get(f"/console/audit/checkpoints/{first.number}").text
    )
    assert first.root in omar.get("/console/audit/checkpoints").text
    assert "This is the newest checkpoint" in omar.get("/console/audit/checkpoints/newest").text
    assert omar.get("/console/audit/checkpoints/999999").status == 404
    assert omar.get("/console/audit/checkpoints/x").status == 404


def test_acts_without_an_end_are_looked_for(platform: Ground) -> None:
    seen = platform.visitor("omar").press("/console/audit/verify", "audit", "unfinished")
    assert "Every act that was begun has its end in the log" in seen.text


def test_an_evidence_pack_is_a_file_to_keep(platform: Ground) -> None:
    omar = platform.visitor("omar")
    page = omar.get("/console/audit/verify")
    (form,) = [one for one in page.tree.all("form") if one["action"].endswith("/do/audit/export")]
    fields = {one["name"]: one["value"] for one in form.all("input[type=hidden]")}
    found = omar._line.post("/console/do/audit/export", data={**fields, "f.since": "0"})
    assert found.headers["content-disposition"] == 'attachment; filename="evidence.zip"'
    with zipfile.ZipFile(io.BytesIO(found.content)) as pack:
        assert any(name.endswith("falaj_verify.py") for name in pack.namelist())


def test_the_log_is_verified_by_clicking(platform: Ground, chromium: Chromium) -> None:
    platform.as_("omar").audit.seal()
    tab = platform.tab(chromium, "omar")
    tab.open("/console/audit/verify")
    tab.page.locator("main button", has_text="Verify now").click()
    expect(tab.page.locator(".notice.good")).to_contain_text("The log is whole")
    text = tab.page.locator("main").inner_text()
    checked = platform.as_("omar").audit.check()
    assert checked.root in text
    read = re.search(r"Events read\s+([\d,]+)", text)
    assert read is not None
    assert 0 < int(read[1].replace(",", "")) <= checked.size
    assert re.search(r"Signature\s+valid", text)
    assert tab.axe() == []
    assert tab.wrong() == []
