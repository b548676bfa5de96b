"""Audit: what happened, who may prove it, and whether the log is whole."""

from typing import Any

from falaj.console.page import Route
from falaj.console.pages.audit.event import event, proof_file
from falaj.console.pages.audit.search import search
from falaj.console.pages.audit.trust import checked, checkpoint, checkpoints, trust, unfinished, verifier

OUTCOMES: dict[str, Any] = {"check": checked, "unfinished": unfinished}
ROUTES: tuple[Route, ...] = (
    Route("audit", search, ("audit", "audit?verb=guard.deny", "audit?about=dataset:fraud/transactions&actor=amal")),
    Route("audit/event/<id>", event, ("audit/event/newest", "audit/event/newest?tab=proof")),
    Route("audit/event/<id>/proof", proof_file, ("audit/event/newest/proof",)),
    Route("audit/verify", trust, ("audit/verify",)),
    Route("audit/verifier", verifier, ("audit/verifier",)),
    Route("audit/checkpoints", checkpoints, ("audit/checkpoints",)),
    Route("audit/checkpoints/<number>", checkpoint, ("audit/checkpoints/newest", "audit/checkpoints/1")),
)
