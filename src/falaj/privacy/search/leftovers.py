"""What erasing left behind: bytes of deleted things that were not collected yet."""

from collections.abc import Iterator

from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.isolated_files import STATE_UNREAD
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep

_MAX_COLLECTION_PASSES = 6  # a bundle goes in one pass, what it was made of in the next


def search_leftovers(estate: DataEstate, case: SearchCase, _after: str) -> Iterator[SearchStep]:
    """Collect the bytes of what was deleted, without the usual grace, and list what could not be collected."""
    if case.wants_rows:
        yield (), ""
        return
    collector = estate.collector()
    for _ in range(_MAX_COLLECTION_PASSES):
        if not collector.collect(case.ctx, without_grace=True).deleted:
            break
    unreached_count = collector.count_unreached(case.ctx)
    reason = f"the bytes of {unreached_count} stored objects that nothing names any more could not be collected yet"
    yield ((SearchOutcome("deleted data", STATE_UNREAD, reason),) if unreached_count else ()), ""
