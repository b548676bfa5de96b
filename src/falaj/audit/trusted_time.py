"""RFC 3161 timestamps: asks a time-stamping server to date a checkpoint, and verifies what it answers.

A token proves that the checkpoint existed at the server's time, independently of the log's key. The answer is accepted
only with our imprint, our nonce, and a signature whose certificate chain ends in the configured authorities.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from cryptography.x509 import Certificate, load_pem_x509_certificates

from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid, Unavailable, missing_package_error

MAX_ANSWER_BYTES = 256 << 10
_REQUEST_TIMEOUT_S = 20.0
_QUERY_MEDIA_TYPE, _REPLY_MEDIA_TYPE = "application/timestamp-query", "application/timestamp-reply"


@dataclass(frozen=True, slots=True)
class TimestampToken:
    """A verified token and what it says."""

    token: bytes
    """The server's answer (TimeStampResp, DER): `openssl ts -verify` takes it as it is."""
    at: float
    """The server's time, in Unix seconds."""
    imprint: str
    """sha256:… of the dated bytes."""
    skew_s: float
    """The server's clock minus ours, as far as the way there and back lets one tell."""


def request_timestamp(
    server: str, authorities: Path, data: bytes, clock: Callable[[], float] = time.time
) -> TimestampToken:
    """Have `data` dated by the server, and verify its answer; Corrupt for one that does not hold."""
    try:
        from rfc3161_client import HashAlgorithm, TimestampRequestBuilder
    except ModuleNotFoundError as error:
        raise missing_package_error("trusted timestamps", "timestamp", error) from error
    query = TimestampRequestBuilder().data(data).hash_algorithm(HashAlgorithm.SHA256).cert_request(cert_request=True)
    request = query.nonce(nonce=True).build()
    sent_at = clock()
    answer = _send_query(server, request.as_bytes())
    answered_at = clock()
    attested_at = verify_token(answer, data, authorities, request.nonce)
    imprint = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return TimestampToken(answer, attested_at, imprint, round(attested_at - (sent_at + answered_at) / 2, 3))


def verify_token(answer: bytes, data: bytes, authorities: Path, nonce: int | None = None) -> float:
    """Return the time a token attests for `data`; raise Corrupt unless imprint, nonce and signature chain hold."""
    from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response

    try:
        response = decode_timestamp_response(answer)
    except ValueError as error:
        raise CorruptData(
            "the timestamp server's answer is no TimeStampResp", "check the setting timestamp.server"
        ) from error
    builder = VerifierBuilder(roots=_read_authorities(authorities))
    verifier = (builder if nonce is None else builder.nonce(nonce)).build()
    try:
        verifier.verify_message(response, data)
    except (VerificationError, ValueError) as error:
        raise CorruptData(
            f"the timestamp does not hold: {error}", "check the settings timestamp.server and timestamp.ca"
        ) from error
    attested_at: float = response.tst_info.gen_time.timestamp()
    return attested_at


def _send_query(server: str, query: bytes) -> bytes:
    headers = {"content-type": _QUERY_MEDIA_TYPE, "accept": _REPLY_MEDIA_TYPE}
    try:
        response = httpx.post(
            server, content=query, headers=headers, timeout=_REQUEST_TIMEOUT_S, follow_redirects=False
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(
            f"the timestamp server does not answer ({type(error).__name__})", "it is asked again"
        ) from error
    if response.status_code != httpx.codes.OK or len(response.content) > MAX_ANSWER_BYTES:
        raise Unavailable(f"the timestamp server answered {response.status_code}", "it is asked again")
    return response.content


def _read_authorities(path: Path) -> list[Certificate]:
    try:
        return list(load_pem_x509_certificates(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise Invalid(
            f"timestamp.ca {path}: not a readable file of PEM certificates", "the server's operator gives it"
        ) from error
