"""Queues: the tree of shares, who has how much of what is theirs, and what waits in each."""

from falaj.console.page import PageRoute
from falaj.console.pages.queues.queue_pages import render_queues_page

ROUTES: tuple[PageRoute, ...] = (
    PageRoute("queues", render_queues_page, walk=("queues", "queues?at=root/bank")),
    PageRoute("queues/<ref>", render_queues_page, walk=("queues/queue:house/tree",)),
)
