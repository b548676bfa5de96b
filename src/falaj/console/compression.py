"""Packing: pages and drawings are mostly repetition, and travel in a fifth of their size.

What is secret in a page (the key of its forms) may be packed with what its address says: no other site can have
a browser ask for a page as the person signed in, since the cookie does not go along.
"""

import zlib

from falaj.api.responses import HttpResponse
from falaj.api.routes import RequestContext

MIN_COMPRESSED_BYTES, COMPRESSION_LEVEL = 4096, 1
_COMPRESSIBLE_TYPES = (b"text/", b"application/json", b"image/svg")


def compress_response(request: RequestContext, response: HttpResponse) -> HttpResponse:
    """The same answer, packed where the browser takes it and it pays."""
    accepts_gzip = b"gzip" in request.headers.get(b"accept-encoding", b"")
    if (
        not accepts_gzip
        or len(response.body) < MIN_COMPRESSED_BYTES
        or not response.kind.startswith(_COMPRESSIBLE_TYPES)
    ):
        return response
    compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, 31)
    body = compressor.compress(response.body) + compressor.flush()
    return response._replace(body=body, headers=(*response.headers, (b"content-encoding", b"gzip")))
