"""A flow that audits: findings and an evidence pack, kept as versions; it fails when a finding is high.

    falaj people add nightly-audit --roles auditor --service
    falaj secrets put secret:compliance/auditor --value "$TOKEN"
    falaj flows save examples/compliance.py
    falaj flows schedule flow:compliance/nightly "0 2 * * *" --zone Asia/Dubai

No run may audit by itself. The step reads as the service account whose token is the secret, and puts a fresh token in
its place, as whoever the flow belongs to: no token outlives a day.
"""

import json
import os

from falaj import flow, step

AUDITOR = "secret:compliance/auditor"
KEPT = {"findings": "dataset:compliance/findings", "pack": "dataset:compliance/evidence"}


@step(outputs=KEPT, secrets={"AUDITOR_TOKEN": AUDITOR}, cpus=1, memory="1GiB", timeout="2h", cache=False)
def audit(regime: str, since: str) -> dict:
    """Look for findings, pack the evidence, renew the token."""
    import falaj

    with falaj.connect(os.environ["FALAJ_URL"], token=os.environ["AUDITOR_TOKEN"]) as auditor:
        found = auditor.audit.findings()
        pack = auditor.audit.evidence(regime, from_=since, out=str(step.output("pack") / f"{regime}.zip"))
        fresh = auditor.people.renew(hours=24).token
    with falaj.connect(os.environ["FALAJ_URL"], token=os.environ["FALAJ_TOKEN"]) as owner:
        owner.secrets.rotate(AUDITOR, fresh)
    lines = [{"severity": one.severity, "rule": one.rule, "about": one.about, "fix": one.fix} for one in found.findings]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (step.output("findings") / "findings.jsonl").write_text(text, encoding="utf-8")
    return {"high": found.high, "medium": found.medium, "absent": list(pack.absent), "digest": pack.digest}


@step(cpus=0.1, memory="128MiB", cache=False)
def judge(high: int) -> None:
    """A flow that failed is heard of: webhooks, triggers and the console tell it."""
    if high:
        raise SystemExit(f"{high} findings are high: falaj audit findings")


@flow("compliance/nightly")
def nightly(regime="AE-PDPL", since="2026-01-01"):
    """Audit, keep what was found, and fail where something is badly wrong."""
    told = audit(regime, since)
    judge(told["high"])
