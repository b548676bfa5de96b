"""Queues: the tree of shares, who has how much of what is theirs, and what waits in each."""

from falaj.console.page import Route
from falaj.console.pages.queues.tree import queues

ROUTES: tuple[Route, ...] = (
    Route("queues", queues, walk=("queues", "queues?at=root/bank")),
    Route("queues/<ref>", queues, walk=("queues/queue:house/tree",)),
)
