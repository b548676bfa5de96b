"""Reasons why an object store cannot be used, in words of ours: the client's own may name hosts, accounts and keys."""

import re

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from falaj.core.circuit_breaker import NoAnswerError
from falaj.core.errors import FalajError, NotFound, Unavailable

_CODE_PATTERN = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_ANSWERED_TEXT = "non-2xx status code"
_METADATA_ADDRESS = "169.254.169.254"
_CREDENTIALS_HINT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3), GOOGLE_APPLICATION_CREDENTIALS (gs) or "
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (az) for the platform, or give its machine a role"
)
_TRANSPORT_ERRORS = (
    ("dns error", "its host name has no address", "check `endpoint` in the address, and the name server"),
    ("onnection refused", "its host refuses the connection", "check that it runs, and the port in `endpoint`"),
    ("ertificate", "its TLS certificate is not trusted", "set root_certificate in the address"),
    ("InvalidContentType", "it does not speak TLS", "write http:// in `endpoint`, and allow_http=true"),
)


def translate_error(error: BaseException) -> FalajError:
    """The client's error as one of ours; NoAnswer where no response came."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return NotFound("the blob store has no such object", "run: falaj store scrub")
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        code = _CODE_PATTERN.search(text)
        reason = f": {code[1]}" if code else ""
        return Unavailable(f"the blob store refuses our credentials{reason}", _CREDENTIALS_HINT)
    if names_missing_bucket(error):
        return bucket_missing_error()
    if _METADATA_ADDRESS in text:
        return Unavailable("there are no credentials for the blob store", _CREDENTIALS_HINT)
    if isinstance(error, ValueError) or _ANSWERED_TEXT in text:
        hint = "try again; then check its address and health"
        return Unavailable("the blob store does not answer as it should", hint)
    for mark, reason, hint in _TRANSPORT_ERRORS:
        if mark in text:
            return NoAnswerError(f"the blob store does not answer: {reason}", hint)
    return NoAnswerError("the blob store does not answer", "try again; then check its address and health")


def names_missing_bucket(error: BaseException) -> bool:
    """Whether the store says that the bucket or container itself does not exist."""
    return any(code in str(error) for code in ("NoSuchBucket", "ContainerNotFound", "bucket does not exist"))


def bucket_missing_error() -> Unavailable:
    """What callers hear of a bucket that does not exist."""
    return Unavailable("the bucket of the blob store does not exist", "create it, or correct the setting blobs")
