"""Which answers travel compressed."""

import pytest

from falaj.oip.calls import OCTETS, Reply
from falaj.oip.codings import chosen, deflate

LARGE = (b"x" * 4096,)


@pytest.mark.parametrize(
    ("accepts", "reply", "coding"),
    [
        (b"gzip", Reply(200, (b"small",)), b"gzip"),
        (b"gzip", Reply(400, (b"small",)), b""),
        (b"deflate", Reply(500, LARGE), b""),
        (b"gzip, deflate", Reply(200, LARGE), b"gzip"),
        (b"gzip, deflate", Reply(404, LARGE), b""),
        (b"gzip, deflate", Reply(200, LARGE, kind=OCTETS), b""),
        (b"gzip;q=0, deflate", Reply(200, LARGE), b"deflate"),
        (b"gzip", Reply(200, LARGE, headers=((b"content-encoding", b"br"),)), b""),
    ],
)
def test_answers_are_compressed_as_asked_and_errors_never(accepts: bytes, reply: Reply, coding: bytes) -> None:
    assert chosen(accepts, reply) == coding


def test_what_is_compressed_keeps_what_names_it() -> None:
    packed = deflate(Reply(200, (b"x" * 2000,), headers=((b"a", b"b"),), lines=b"falaj-request: 018f\r\n"), b"gzip")
    assert (packed.lines, packed.headers[0]) == (b"falaj-request: 018f\r\n", (b"a", b"b"))
    assert len(packed.parts[0]) < 100
