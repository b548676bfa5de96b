"""Which answers travel compressed."""

import pytest

from falaj.oip.compression import choose_coding, compress_reply
from falaj.oip.handler_calls import OCTET_STREAM_TYPE, HttpReply

LARGE = (b"x" * 4096,)


@pytest.mark.parametrize(
    ("accepts", "reply", "coding"),
    [
        (b"gzip", HttpReply(200, (b"small",)), b"gzip"),
        (b"gzip", HttpReply(400, (b"small",)), b""),
        (b"deflate", HttpReply(500, LARGE), b""),
        (b"gzip, deflate", HttpReply(200, LARGE), b"gzip"),
        (b"gzip, deflate", HttpReply(404, LARGE), b""),
        (b"gzip, deflate", HttpReply(200, LARGE, kind=OCTET_STREAM_TYPE), b""),
        (b"gzip;q=0, deflate", HttpReply(200, LARGE), b"deflate"),
        (b"gzip", HttpReply(200, LARGE, headers=((b"content-encoding", b"br"),)), b""),
    ],
)
def test_answers_are_compressed_as_asked_and_errors_never(accepts: bytes, reply: HttpReply, coding: bytes) -> None:
    assert choose_coding(accepts, reply) == coding


def test_what_is_compressed_keeps_what_names_it() -> None:
    packed = compress_reply(
        HttpReply(200, (b"x" * 2000,), headers=((b"a", b"b"),), lines=b"falaj-request: 018f\r\n"), b"gzip"
    )
    assert (packed.lines, packed.headers[0]) == (b"falaj-request: 018f\r\n", (b"a", b"b"))
    assert len(packed.parts[0]) < 100
