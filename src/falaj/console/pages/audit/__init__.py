"""Audit: what happened, who may prove it, and whether the log is whole."""

from typing import Any

from falaj.console.page import PageRoute
from falaj.console.pages.audit.log_entry import download_proof, render_entry_page
from falaj.console.pages.audit.log_search import render_search_page
from falaj.console.pages.audit.log_verification import (
    download_verifier,
    render_check_page,
    render_checkpoint_page,
    render_checkpoints_page,
    render_unfinished_page,
    render_verification_page,
)

OUTCOMES: dict[str, Any] = {"check": render_check_page, "unfinished": render_unfinished_page}
ROUTES: tuple[PageRoute, ...] = (
    PageRoute(
        "audit",
        render_search_page,
        ("audit", "audit?verb=guard.deny", "audit?about=dataset:fraud/transactions&actor=amal"),
    ),
    PageRoute("audit/event/<id>", render_entry_page, ("audit/event/newest", "audit/event/newest?tab=proof")),
    PageRoute("audit/event/<id>/proof", download_proof, ("audit/event/newest/proof",)),
    PageRoute("audit/verify", render_verification_page, ("audit/verify",)),
    PageRoute("audit/verifier", download_verifier, ("audit/verifier",)),
    PageRoute("audit/checkpoints", render_checkpoints_page, ("audit/checkpoints",)),
    PageRoute(
        "audit/checkpoints/<number>", render_checkpoint_page, ("audit/checkpoints/newest", "audit/checkpoints/1")
    ),
)
