"""Packing: pages and drawings are mostly repetition, and travel in a fifth of their size.

What is secret in a page (the key of its forms) may be packed with what its address says: no other site can have
a browser ask for a page as the person signed in, since the cookie does not go along.
"""

import zlib

from falaj.api.answers import Answer
from falaj.api.routes import Ask

LEAST_BYTES, LEVEL = 4096, 1
_KINDS = (b"text/", b"application/json", b"image/svg")


def packed(ask: Ask, answer: Answer) -> Answer:
    """The same answer, packed where the browser takes it and it pays."""
    takes = b"gzip" in ask.headers.get(b"accept-encoding", b"")
    if not takes or len(answer.body) < LEAST_BYTES or not answer.kind.startswith(_KINDS):
        return answer
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
    body = packer.compress(answer.body) + packer.flush()
    return answer._replace(body=body, headers=(*answer.headers, (b"content-encoding", b"gzip")))
