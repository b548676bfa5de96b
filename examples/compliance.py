"""A flow that audits: findings and an evidence pack, kept as versions; it fails when a finding is high.

    falaj people add nightly-audit --roles auditor --service
    falaj people add nightly-keeper --roles ml-engineer --service --projects compliance
    falaj people token nightly-audit --hours 24 --renewable 8760      (an administrator)
    falaj people token nightly-keeper --hours 24 --renewable 8760     (an ML engineer)
    falaj secrets put secret:compliance/auditor --value "$TOKEN_OF_THE_FIRST"
    falaj secrets put secret:compliance/keeper --value "$TOKEN_OF_THE_SECOND"
    falaj flows save examples/compliance.py
    falaj flows schedule flow:compliance/nightly "0 2 * * *" --zone Asia/Dubai --params url=https://falaj.bank.example

No run may audit by itself, and no token of a service account outlives a day. So the step looks as the first account,
which may look at everything and change nothing; both then renew their tokens, and the second, which may only work in
this project, puts them where the next night finds them.
"""

import json
import os

from falaj import flow, step

AUDITOR, KEEPER = "secret:compliance/auditor", "secret:compliance/keeper"
KEPT = {"findings": "dataset:compliance/findings", "pack": "dataset:compliance/evidence"}


@step(outputs=KEPT, secrets={"AUDITOR": AUDITOR, "KEEPER": KEEPER}, cpus=1, memory="1GiB", timeout="2h", cache=False)
def audit(url: str, regime: str, since: str) -> dict:
    """Look for findings, pack the evidence, renew the tokens."""
    import falaj

    with falaj.connect(url, token=os.environ["AUDITOR"]) as auditor:
        found = auditor.audit.findings()
        pack = auditor.audit.evidence(regime, from_=since, out=str(step.output("pack") / f"{regime}.zip"))
        fresh = auditor.people.renew(hours=24).token
    with falaj.connect(url, token=os.environ["KEEPER"]) as keeper:
        keeper.secrets.rotate(AUDITOR, fresh)
        keeper.secrets.rotate(KEEPER, keeper.people.renew(hours=24).token)
    lines = [{"severity": one.severity, "rule": one.rule, "about": one.about, "fix": one.fix} for one in found.findings]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (step.output("findings") / "findings.jsonl").write_text(text, encoding="utf-8")
    return {"high": found.high, "medium": found.medium, "not_shown": list(pack.not_shown), "digest": pack.digest}


@step(cpus=0.1, memory="128MiB", cache=False)
def judge(high: int) -> None:
    """A flow that failed is heard of: webhooks, triggers and the console tell it."""
    if high:
        raise SystemExit(f"{high} findings are high: falaj audit findings")


@flow("compliance/nightly")
def nightly(url="http://127.0.0.1:8470", regime="AE-PDPL", since="2026-01-01"):
    """Audit, keep what was found, and fail where something is badly wrong."""
    told = audit(url, regime, since)
    judge(told["high"])
