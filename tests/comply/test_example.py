"""The example flow, on a real server: it audits by night, renews its token, and is heard of when something is wrong."""

import json
import zipfile
from pathlib import Path

import pytest

from tests.people import enroll, enroll_tenant
from tests.replica import Replica

EXAMPLE = Path(__file__).parents[2] / "examples" / "compliance.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_audits_and_renews_its_token(tmp_path: Path) -> None:
    with Replica(tmp_path / "house", {"FALAJ_SANDBOX": "off"}) as server:
        boss = server.as_(enroll_tenant(server.as_(), "bank", "fatima"))
        for cluster in server.as_().clusters.list():
            server.as_().clusters.change(cluster.name, {"tenants": "bank"})
        mona = server.as_(enroll(boss, "mona", ("ml-engineer",), jurisdiction="AE"))
        boss.people.add("nightly-audit", ("auditor",), service=True, jurisdiction="")
        boss.people.add("nightly-keeper", ("ml-engineer",), service=True, projects=("compliance",))
        token = boss.people.token("nightly-audit", hours=24, renewable=8760).token
        keeper = mona.people.token("nightly-keeper", hours=24, renewable=8760).token
        mona.secrets.put("secret:compliance/auditor", token)
        mona.secrets.put("secret:compliance/keeper", keeper)
        saved = mona.flows.save(str(EXAMPLE))
        first, second = (
            mona.flows.run(str(saved.ref.bare), {"url": server.url}, cause=cause) for cause in ("one", "two")
        )
        assert [step.state for step in first.steps] == ["succeeded", "succeeded"], first
        assert second.state == "succeeded", "the token was not renewed"
        assert mona.secrets.show("secret:compliance/auditor").current == 3
        mona.catalog.checkout("dataset:compliance/evidence", str(tmp_path / "pack"))
        mona.catalog.checkout("dataset:compliance/findings", str(tmp_path / "findings"))
        lines = (tmp_path / "findings" / "findings.jsonl").read_text().splitlines()
        assert "unreviewed-account" in {json.loads(line)["rule"] for line in lines}
        assert "evidence.proof.json" in zipfile.ZipFile(tmp_path / "pack" / "AE-PDPL.zip").namelist()
