"""What tests of endpoints' series stand on: a real house with its keys, and rows."""

from falaj.core.ref import Ref
from falaj.serve.blocks import Whose
from falaj.serve.counts import Counted, bucket
from falaj.serve.journal import Logged

REF = Ref.parse("endpoint:fraud/score")
WHOSE = Whose("bank", REF, "ae-dubai")
NOON = 1_800_000_000.0


def counted(at: float, arm: str = "base", revision: int = 1, requests: int = 10, **more: object) -> Counted:
    """A second of an arm, every request in 100 us."""
    row = Counted(
        "bank", str(REF), arm, revision, at, requests, 0, {bucket(100): requests}, 0, 0, "gateway-1", "ae-dubai"
    )
    return row._replace(**more)


def logged(at: float, id_: str, key: str = "", revision: int = 1, **more: object) -> Logged:
    """A request that was answered."""
    row = Logged(at, id_, key, "base", revision, 200, 150, "amal", b'{"inputs": []}', b'{"outputs": []}', "json")
    return row._replace(**more)
