"""What erasing left behind: bytes of deleted things that were not collected yet."""

from collections.abc import Iterator

from falaj.privacy.search.estate import Estate
from falaj.privacy.search.isolated_files import UNREAD
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep

_PASSES = 6  # a bundle goes in one pass, what it was made of in the next


def search_leftovers(estate: Estate, case: SearchCase, _after: str) -> Iterator[SearchStep]:
    """Collect the bytes of what was deleted, without the usual grace, and list what could not be collected."""
    if case.wants_rows:
        yield (), ""
        return
    collector = estate.collector()
    for _ in range(_PASSES):
        if not collector.collect(case.ctx, at_once=True).deleted:
            break
    left = collector.count_unreached(case.ctx)
    reason = f"the bytes of {left} stored objects that nothing names any more could not be collected yet"
    yield ((SearchOutcome("deleted data", UNREAD, reason),) if left else ()), ""
