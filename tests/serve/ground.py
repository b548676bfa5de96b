"""What tests of endpoints' series stand on: a real house with its keys, and rows."""

from falaj.core.ref import Ref
from falaj.serve.request_counts import CountRow, latency_bucket
from falaj.serve.request_journal import JournalRow
from falaj.serve.sealed_blocks import RowOwner

REF = Ref.parse("endpoint:fraud/score")
WHOSE = RowOwner("bank", REF, "ae-dubai")
NOON = 1_800_000_000.0


def counted(at: float, arm: str = "base", revision: int = 1, requests: int = 10, **more: object) -> CountRow:
    """A second of an arm, every request in 100 us."""
    row = CountRow(
        "bank", str(REF), arm, revision, at, requests, 0, {latency_bucket(100): requests}, 0, 0, "gateway-1", "ae-dubai"
    )
    return row._replace(**more)


def logged(at: float, id_: str, key: str = "", revision: int = 1, **more: object) -> JournalRow:
    """A request that was answered."""
    row = JournalRow(at, id_, key, "base", revision, 200, 150, "amal", b'{"inputs": []}', b'{"outputs": []}', "json")
    return row._replace(**more)
