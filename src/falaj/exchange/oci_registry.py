"""One repository of an OCI registry, by the distribution protocol: blobs and manifests by digest, over TLS.

The caller's machine calls the address that its user names; the platform itself calls nothing.
"""

import base64
import hashlib
import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from falaj.core.errors import CorruptData, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.exchange.untrusted_input import read_json_object

PASSWORD_VARIABLE = "FALAJ_REGISTRY_PASSWORD"  # noqa: S105  # nosec B105: the name of a variable
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
DIGEST_PATTERN = r"sha256:[0-9a-f]{64}"
MAX_MANIFEST_BYTES = 4 << 20
UPLOAD_CHUNK_BYTES = 64 << 20
"""What is sent in one request."""
_STREAM_BYTES = 1 << 20
_MAX_DOWNLOAD_TRIES = 3
_MAX_REDIRECTS = 3
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
_REPOSITORY_PATTERN = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
ReportProgress = Callable[[int], None]
RequestBody = tuple[Callable[[], Iterator[bytes]], int]
"""What begins the bytes of a request, as often as it has to be sent, and how many they are."""


@dataclass(frozen=True, slots=True)
class RegistryLocation:
    """`registry.example/project/repository:tag`, or `…@sha256:…`."""

    host: str
    repository: str
    reference: str

    @staticmethod
    def parse(text: str, tag: str = "latest") -> "RegistryLocation":
        """Read a place as people write it; `tag` is taken where it names none."""
        host, slash, path = text.partition("/")
        repository, at_sign, reference = path.partition("@")
        if not at_sign:
            repository, _, reference = path.partition(":")
        reference = reference or tag
        is_valid_reference = re.fullmatch(DIGEST_PATTERN, reference) if at_sign else _TAG_PATTERN.fullmatch(reference)
        if not (
            slash and is_valid_reference and _HOST_PATTERN.fullmatch(host) and _REPOSITORY_PATTERN.fullmatch(repository)
        ):
            raise Invalid(f"{text!r:.200} is no place in a registry", "write registry.example/project/repository:tag")
        return RegistryLocation(host, repository, reference)

    @property
    def loopback(self) -> bool:
        """True on this machine, where there is no wire to listen on: plain HTTP is spoken."""
        return httpx.URL(f"http://{self.host}").host in _LOOPBACK_HOSTS

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{'@' if ':' in self.reference else ':'}{self.reference}"


class RegistryClient:
    """A repository under one name, with the caller's right to read it or to write into it."""

    def __init__(self, location: RegistryLocation, user: str = "", authority: str = "", *, write: bool = False) -> None:
        self._registry_location = location
        scheme = "http" if location.loopback and not authority else "https"
        self._base = httpx.URL(f"{scheme}://{location.host}/v2/{location.repository}/")
        self._basic_authorization = _find_credentials(location.host, user)
        self._scope = f"repository:{location.repository}:{'pull,push' if write else 'pull'}"
        self._authorization = ""
        # A proxy of the environment is asked for strangers only.
        identity_headers = {"Accept-Encoding": "identity"}
        self._client = httpx.Client(
            verify=_create_trust_context(authority),
            trust_env=not location.loopback,
            timeout=60,
            headers=identity_headers,
        )
        self.chunk_bytes = UPLOAD_CHUNK_BYTES

    def __enter__(self) -> "RegistryClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def manifest(self) -> tuple[str, bytes]:
        """The digest and the bytes of what the place names."""
        reference = self._registry_location.reference
        answer = self._request_whole(
            "GET", f"manifests/{reference}", headers={"Accept": f"{MANIFEST_TYPE}, {INDEX_TYPE}"}
        )
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        claimed_digest = reference if ":" in reference else answer.headers.get("Docker-Content-Digest", digest)
        if claimed_digest != digest:
            raise CorruptData(
                f"{self._registry_location} is not what its digest says",
                "the registry, or somebody between, changed it",
            )
        return digest, answer.content

    def put_manifest(self, data: bytes) -> str:
        """Name what was uploaded; gives its digest."""
        body: RequestBody = (lambda: iter((data,)), len(data))
        self._request_whole(
            "PUT", f"manifests/{self._registry_location.reference}", body, {"Content-Type": MANIFEST_TYPE}
        )
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def has(self, digest: str) -> bool:
        """True when the repository holds a blob already."""
        try:
            self._request_whole("HEAD", f"blobs/{digest}")
        except NotFound:
            return False
        return True

    def upload(self, file: Path, digest: str, advance: ReportProgress) -> bool:
        """Send a blob unless it is there; True when it was sent. One that breaks off is begun anew."""
        size, attempt_count = file.stat().st_size, 0
        if not (is_there := self.has(digest)):
            while attempt_count < _MAX_DOWNLOAD_TRIES:
                attempt_count += 1
                try:
                    self._upload_in_chunks(file, digest, size)
                    attempt_count = _MAX_DOWNLOAD_TRIES
                except Unavailable:
                    if attempt_count == _MAX_DOWNLOAD_TRIES:
                        raise
        advance(size)
        return not is_there

    def download(self, digest: str, size: int, target: Path, advance: ReportProgress) -> None:
        """A blob as a new file; Corrupt, and no file, unless it is exactly what was said of it."""
        received_bytes, attempt_count, hasher = 0, 0, hashlib.sha256()
        try:
            with target.open("xb") as file:
                while attempt_count < _MAX_DOWNLOAD_TRIES and received_bytes <= size:
                    attempt_count += 1
                    try:
                        for piece in self._stream_blob(digest, received_bytes):
                            hasher.update(piece)
                            file.write(piece)
                            received_bytes += len(piece)
                            advance(len(piece))
                            if received_bytes > size:
                                break
                        attempt_count = _MAX_DOWNLOAD_TRIES
                    except Unavailable:
                        if attempt_count == _MAX_DOWNLOAD_TRIES:
                            raise
            if received_bytes != size or f"sha256:{hasher.hexdigest()}" != digest:
                raise CorruptData(
                    f"{digest} is not what its digest says", "the registry, or somebody between, changed it"
                )
        except FalajError:
            target.unlink(missing_ok=True)
            raise

    def _stream_blob(self, digest: str, start: int) -> Iterator[bytes]:
        """Bytes from `start` on, whether or not the registry can begin there."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._open_request("GET", f"blobs/{digest}", headers=headers) as answer:
            skipped_bytes = start if answer.status_code == httpx.codes.OK else 0
            for piece in answer.iter_raw(_STREAM_BYTES):
                if len(piece) > skipped_bytes:
                    yield piece[skipped_bytes:]
                skipped_bytes = max(0, skipped_bytes - len(piece))

    def _upload_in_chunks(self, file: Path, digest: str, size: int) -> None:
        """In pieces that a proxy lets pass, the last of which names the whole."""
        upload_url, sent_bytes = self._redirect_target(self._request_whole("POST", "blobs/uploads/")), 0
        while size - sent_bytes > self.chunk_bytes:
            chunk_end = sent_bytes + self.chunk_bytes
            headers = {**_BYTES_HEADERS, "Content-Range": f"{sent_bytes}-{chunk_end - 1}"}
            upload_url, sent_bytes = (
                self._redirect_target(
                    self._request_whole("PATCH", upload_url, _file_part(file, sent_bytes, chunk_end), headers)
                ),
                chunk_end,
            )
        self._request_whole(
            "PUT", upload_url.copy_merge_params({"digest": digest}), _file_part(file, sent_bytes, size), _BYTES_HEADERS
        )

    def _redirect_target(self, answer: httpx.Response) -> httpx.URL:
        return self._check_target(answer.url, answer.headers.get("Location", ""))

    def _check_target(self, base: httpx.URL, text: str) -> httpx.URL:
        """Where a registry sends us, if it may: over TLS, as long as we are not on this machine anyway."""
        try:
            target = base.join(text)
        except (httpx.InvalidURL, ValueError):
            target = httpx.URL()
        if target.scheme == "https" or (
            self._registry_location.loopback and target.scheme == "http" and target.host in _LOOPBACK_HOSTS
        ):
            return target
        raise Denied(f"{self._registry_location.host} sends us to {text!r:.100}", "only TLS is spoken there")

    def _request_whole(
        self, method: str, url: str | httpx.URL, body: RequestBody | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """An answer, read whole up to the size of a manifest."""
        with self._open_request(method, url, body, headers) as answer:
            received = bytearray()
            for piece in answer.iter_raw(_STREAM_BYTES):
                received += piece
                if len(received) > MAX_MANIFEST_BYTES:
                    raise Invalid(
                        f"{self._registry_location.host} answers with more than 4 MiB", "a manifest may not be larger"
                    )
            return httpx.Response(200, headers=answer.headers, content=bytes(received), request=answer.request)

    @contextmanager
    def _open_request(
        self, method: str, url: str | httpx.URL, body: RequestBody | None = None, headers: dict[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """Ask, sign in when told to, follow where a blob lies; raises for whatever is no success."""
        target, signed_in = self._base.join(url), False
        try:
            for _ in range(_MAX_REDIRECTS + 2):
                # Who we are is for the registry itself, and for nobody it sends us to.
                is_own_origin = _url_origin(target) == _url_origin(self._base)
                request_headers = dict(headers or {}) | ({"Content-Length": str(body[1])} if body else {})
                if is_own_origin and self._authorization:
                    request_headers["Authorization"] = self._authorization
                request = self._client.build_request(
                    method, target, headers=request_headers, content=body[0]() if body else None
                )
                answer = self._client.send(request, stream=True)
                try:
                    if answer.status_code == httpx.codes.UNAUTHORIZED and is_own_origin and not signed_in:
                        self._sign_in(answer.headers.get("WWW-Authenticate", ""))
                        signed_in = True
                    elif answer.is_redirect and method in ("GET", "HEAD"):
                        target = self._redirect_target(answer)
                    else:
                        self._raise_for_status(answer)
                        yield answer
                        return
                finally:
                    answer.close()
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Denied(
                    f"nobody we trust vouches for {self._registry_location.host}", "give --authority FILE"
                ) from error
            if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
                reason = str(error) or "nobody answered in time"
                hint = "check its name and port, and whether this machine may call it (a proxy is named in HTTPS_PROXY)"
                raise Unavailable(f"{self._registry_location.host} cannot be reached: {reason:.200}", hint) from error
            raise Unavailable(
                f"{self._registry_location.host} does not answer: {type(error).__name__}", "try again"
            ) from error
        raise Unavailable(f"{self._registry_location.host} sends us around in circles", "ask whoever runs it")

    def _sign_in(self, challenge: str) -> None:
        scheme, _, parameters = challenge.partition(" ")
        challenge_fields = dict(re.findall(r'(\w+)="([^"]*)"', parameters))
        if scheme.lower() == "basic" and self._basic_authorization:
            self._authorization = self._basic_authorization
        elif scheme.lower() == "bearer" and challenge_fields.get("realm"):
            self._authorization = f"Bearer {self._fetch_token(challenge_fields)}"
        else:
            raise Unauthenticated(
                f"{self._registry_location.host} asks who you are", f"give --user and set {PASSWORD_VARIABLE}"
            )

    def _fetch_token(self, challenge_fields: dict[str, str]) -> str:
        realm = self._check_target(self._base, challenge_fields["realm"])
        params = {
            "scope": self._scope,
            **({"service": challenge_fields["service"]} if "service" in challenge_fields else {}),
        }
        headers = {"Authorization": self._basic_authorization} if self._basic_authorization else {}
        with self._client.stream("GET", realm, params=params, headers=headers) as answer:
            data = next(answer.iter_bytes(_STREAM_BYTES), b"") if answer.is_success else b"{}"
        token_fields = read_json_object(data, "the token")
        token = token_fields.get("token") or token_fields.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise Unauthenticated(
                f"{realm.host} gives no token", f"give --user and set {PASSWORD_VARIABLE}, or ask for access"
            )
        return token

    def _raise_for_status(self, answer: httpx.Response) -> None:
        code, location = answer.status_code, self._registry_location
        if code in (401, 403):
            raise Denied(f"{location.host} refuses you {location.repository}", "check user, password and their rights")
        if code == httpx.codes.NOT_FOUND:
            raise NotFound(
                f"{location.host} has no {location.repository}:{location.reference}", "check its name and tag"
            )
        if code >= httpx.codes.INTERNAL_SERVER_ERROR or code == httpx.codes.TOO_MANY_REQUESTS:
            raise Unavailable(f"{location.host} answers {code}", "try again later")
        if not answer.is_success:
            raise Invalid(f"{location.host} answers {code} to {answer.request.method}", "it may not keep OCI artefacts")


_BYTES_HEADERS = {"Content-Type": "application/octet-stream"}


def _file_part(file: Path, start: int, stop: int) -> RequestBody:
    def iterate_pieces() -> Iterator[bytes]:
        with file.open("rb") as source:
            source.seek(start)
            remaining = stop - start
            while remaining and (piece := source.read(min(_STREAM_BYTES, remaining))):
                remaining -= len(piece)
                yield piece

    return iterate_pieces, stop - start


def _url_origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _create_trust_context(authority: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise Invalid(f"{authority} holds no certificates", "give a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _find_credentials(host: str, user: str) -> str:
    """What to say when asked for a name and a password: by --user, else as `docker login` left it; or nothing."""
    if user:
        if not os.environ.get(PASSWORD_VARIABLE):
            raise Invalid(f"there is no password for {user}", f"set {PASSWORD_VARIABLE}; it is never a flag")
        return f"Basic {base64.b64encode(f'{user}:{os.environ[PASSWORD_VARIABLE]}'.encode()).decode()}"
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    if not file.is_file():
        return ""
    auths = read_json_object(file.read_bytes(), str(file)).get("auths")
    host_entry = auths.get(host) or auths.get(f"https://{host}") if isinstance(auths, dict) else None
    auth = host_entry.get("auth") if isinstance(host_entry, dict) else None
    return f"Basic {auth}" if isinstance(auth, str) and re.fullmatch(r"[A-Za-z0-9+/=]+", auth) else ""
