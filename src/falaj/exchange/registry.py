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

from falaj.core.errors import Corrupt, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.exchange.intake import read_object

PASSWORD = "FALAJ_REGISTRY_PASSWORD"  # noqa: S105  # nosec B105: the name of a variable
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DIGEST = r"sha256:[0-9a-f]{64}"
MOST_MANIFEST = 4 << 20
CHUNK = 64 << 20
"""What is sent in one request."""
_PIECE = 1 << 20
_TRIES = 3
_HOPS = 3
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
Advance = Callable[[int], None]
Body = tuple[Callable[[], Iterator[bytes]], int]
"""What begins the bytes of a request, as often as it has to be sent, and how many they are."""


@dataclass(frozen=True, slots=True)
class Place:
    """`registry.example/project/repository:tag`, or `…@sha256:…`."""

    host: str
    repository: str
    reference: str

    @staticmethod
    def parse(text: str, tag: str = "latest") -> "Place":
        """Read a place as people write it; `tag` is taken where it names none."""
        host, slash, rest = text.partition("/")
        repository, at, reference = rest.partition("@")
        if not at:
            repository, _, reference = rest.partition(":")
        reference = reference or tag
        known = re.fullmatch(DIGEST, reference) if at else _TAG.fullmatch(reference)
        if not (slash and known and _HOST.fullmatch(host) and _REPOSITORY.fullmatch(repository)):
            raise Invalid(f"{text!r:.200} is no place in a registry", "write registry.example/project/repository:tag")
        return Place(host, repository, reference)

    @property
    def loopback(self) -> bool:
        """True on this machine, where there is no wire to listen on: plain HTTP is spoken."""
        return httpx.URL(f"http://{self.host}").host in _LOOPBACK

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{'@' if ':' in self.reference else ':'}{self.reference}"


class Registry:
    """A repository under one name, with the caller's right to read it or to write into it."""

    def __init__(self, place: Place, user: str = "", authority: str = "", *, write: bool = False) -> None:
        self._place = place
        scheme = "http" if place.loopback and not authority else "https"
        self._base = httpx.URL(f"{scheme}://{place.host}/v2/{place.repository}/")
        self._basic = _credentials(place.host, user)
        self._scope = f"repository:{place.repository}:{'pull,push' if write else 'pull'}"
        self._authorization = ""
        # A proxy of the environment is asked for strangers only.
        plain = {"Accept-Encoding": "identity"}
        self._client = httpx.Client(verify=_trust(authority), trust_env=not place.loopback, timeout=60, headers=plain)
        self.chunk_bytes = CHUNK

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def manifest(self) -> tuple[str, bytes]:
        """The digest and the bytes of what the place names."""
        reference = self._place.reference
        answer = self._ask("GET", f"manifests/{reference}", headers={"Accept": f"{MANIFEST}, {INDEX}"})
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        said = reference if ":" in reference else answer.headers.get("Docker-Content-Digest", digest)
        if said != digest:
            raise Corrupt(f"{self._place} is not what its digest says", "the registry, or somebody between, changed it")
        return digest, answer.content

    def put_manifest(self, data: bytes) -> str:
        """Name what was uploaded; gives its digest."""
        body: Body = (lambda: iter((data,)), len(data))
        self._ask("PUT", f"manifests/{self._place.reference}", body, {"Content-Type": MANIFEST})
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def has(self, digest: str) -> bool:
        """True when the repository holds a blob already."""
        try:
            self._ask("HEAD", f"blobs/{digest}")
        except NotFound:
            return False
        return True

    def upload(self, file: Path, digest: str, advance: Advance) -> bool:
        """Send a blob unless it is there; True when it was sent. One that breaks off is begun anew."""
        size, tries = file.stat().st_size, 0
        if not (there := self.has(digest)):
            while tries < _TRIES:
                tries += 1
                try:
                    self._send(file, digest, size)
                    tries = _TRIES
                except Unavailable:
                    if tries == _TRIES:
                        raise
        advance(size)
        return not there

    def download(self, digest: str, size: int, into: Path, advance: Advance) -> None:
        """A blob as a new file; Corrupt, and no file, unless it is exactly what was said of it."""
        done, tries, hasher = 0, 0, hashlib.sha256()
        try:
            with into.open("xb") as file:
                while tries < _TRIES and done <= size:
                    tries += 1
                    try:
                        for piece in self._get(digest, done):
                            hasher.update(piece)
                            file.write(piece)
                            done += len(piece)
                            advance(len(piece))
                            if done > size:
                                break
                        tries = _TRIES
                    except Unavailable:
                        if tries == _TRIES:
                            raise
            if done != size or f"sha256:{hasher.hexdigest()}" != digest:
                raise Corrupt(f"{digest} is not what its digest says", "the registry, or somebody between, changed it")
        except FalajError:
            into.unlink(missing_ok=True)
            raise

    def _get(self, digest: str, start: int) -> Iterator[bytes]:
        """Bytes from `start` on, whether or not the registry can begin there."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._open("GET", f"blobs/{digest}", headers=headers) as answer:
            skip = start if answer.status_code == httpx.codes.OK else 0
            for piece in answer.iter_raw(_PIECE):
                if len(piece) > skip:
                    yield piece[skip:]
                skip = max(0, skip - len(piece))

    def _send(self, file: Path, digest: str, size: int) -> None:
        """In pieces that a proxy lets pass, the last of which names the whole."""
        where, sent = self._location(self._ask("POST", "blobs/uploads/")), 0
        while size - sent > self.chunk_bytes:
            stop = sent + self.chunk_bytes
            headers = {**_BYTES, "Content-Range": f"{sent}-{stop - 1}"}
            where, sent = self._location(self._ask("PATCH", where, _part(file, sent, stop), headers)), stop
        self._ask("PUT", where.copy_merge_params({"digest": digest}), _part(file, sent, size), _BYTES)

    def _location(self, answer: httpx.Response) -> httpx.URL:
        return self._admitted(answer.url, answer.headers.get("Location", ""))

    def _admitted(self, base: httpx.URL, text: str) -> httpx.URL:
        """Where a registry sends us, if it may: over TLS, as long as we are not on this machine anyway."""
        try:
            target = base.join(text)
        except (httpx.InvalidURL, ValueError):
            target = httpx.URL()
        if target.scheme == "https" or (self._place.loopback and target.scheme == "http" and target.host in _LOOPBACK):
            return target
        raise Denied(f"{self._place.host} sends us to {text!r:.100}", "only TLS is spoken there")

    def _ask(
        self, method: str, url: str | httpx.URL, body: Body | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """An answer, read whole up to the size of a manifest."""
        with self._open(method, url, body, headers) as answer:
            read = bytearray()
            for piece in answer.iter_raw(_PIECE):
                read += piece
                if len(read) > MOST_MANIFEST:
                    raise Invalid(f"{self._place.host} answers with more than 4 MiB", "a manifest may not be larger")
            return httpx.Response(200, headers=answer.headers, content=bytes(read), request=answer.request)

    @contextmanager
    def _open(
        self, method: str, url: str | httpx.URL, body: Body | None = None, headers: dict[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """Ask, sign in when told to, follow where a blob lies; raises for whatever is no success."""
        target, signed_in = self._base.join(url), False
        try:
            for _ in range(_HOPS + 2):
                # Who we are is for the registry itself, and for nobody it sends us to.
                own = _origin(target) == _origin(self._base)
                sent = dict(headers or {}) | ({"Content-Length": str(body[1])} if body else {})
                if own and self._authorization:
                    sent["Authorization"] = self._authorization
                request = self._client.build_request(method, target, headers=sent, content=body[0]() if body else None)
                answer = self._client.send(request, stream=True)
                try:
                    if answer.status_code == httpx.codes.UNAUTHORIZED and own and not signed_in:
                        self._sign_in(answer.headers.get("WWW-Authenticate", ""))
                        signed_in = True
                    elif answer.is_redirect and method in ("GET", "HEAD"):
                        target = self._location(answer)
                    else:
                        self._raise_for(answer)
                        yield answer
                        return
                finally:
                    answer.close()
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Denied(f"nobody we trust vouches for {self._place.host}", "give --authority FILE") from error
            if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
                why = str(error) or "nobody answered in time"
                hint = "check its name and port, and whether this machine may call it (a proxy is named in HTTPS_PROXY)"
                raise Unavailable(f"{self._place.host} cannot be reached: {why:.200}", hint) from error
            raise Unavailable(f"{self._place.host} does not answer: {type(error).__name__}", "try again") from error
        raise Unavailable(f"{self._place.host} sends us around in circles", "ask whoever runs it")

    def _sign_in(self, challenge: str) -> None:
        scheme, _, rest = challenge.partition(" ")
        said = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if scheme.lower() == "basic" and self._basic:
            self._authorization = self._basic
        elif scheme.lower() == "bearer" and said.get("realm"):
            self._authorization = f"Bearer {self._token(said)}"
        else:
            raise Unauthenticated(f"{self._place.host} asks who you are", f"give --user and set {PASSWORD}")

    def _token(self, said: dict[str, str]) -> str:
        realm = self._admitted(self._base, said["realm"])
        params = {"scope": self._scope, **({"service": said["service"]} if "service" in said else {})}
        headers = {"Authorization": self._basic} if self._basic else {}
        with self._client.stream("GET", realm, params=params, headers=headers) as answer:
            data = next(answer.iter_bytes(_PIECE), b"") if answer.is_success else b"{}"
        found = read_object(data, "the token")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise Unauthenticated(f"{realm.host} gives no token", f"give --user and set {PASSWORD}, or ask for access")
        return token

    def _raise_for(self, answer: httpx.Response) -> None:
        code, place = answer.status_code, self._place
        if code in (401, 403):
            raise Denied(f"{place.host} refuses you {place.repository}", "check user, password and their rights")
        if code == httpx.codes.NOT_FOUND:
            raise NotFound(f"{place.host} has no {place.repository}:{place.reference}", "check its name and tag")
        if code >= httpx.codes.INTERNAL_SERVER_ERROR or code == httpx.codes.TOO_MANY_REQUESTS:
            raise Unavailable(f"{place.host} answers {code}", "try again later")
        if not answer.is_success:
            raise Invalid(f"{place.host} answers {code} to {answer.request.method}", "it may not keep OCI artefacts")


_BYTES = {"Content-Type": "application/octet-stream"}


def _part(file: Path, start: int, stop: int) -> Body:
    def pieces() -> Iterator[bytes]:
        with file.open("rb") as source:
            source.seek(start)
            left = stop - start
            while left and (piece := source.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece

    return pieces, stop - start


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _trust(authority: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise Invalid(f"{authority} holds no certificates", "give a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _credentials(host: str, user: str) -> str:
    """What to say when asked for a name and a password: by --user, else as `docker login` left it; or nothing."""
    if user:
        if not os.environ.get(PASSWORD):
            raise Invalid(f"there is no password for {user}", f"set {PASSWORD}; it is never a flag")
        return f"Basic {base64.b64encode(f'{user}:{os.environ[PASSWORD]}'.encode()).decode()}"
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    if not file.is_file():
        return ""
    auths = read_object(file.read_bytes(), str(file)).get("auths")
    known = auths.get(host) or auths.get(f"https://{host}") if isinstance(auths, dict) else None
    auth = known.get("auth") if isinstance(known, dict) else None
    return f"Basic {auth}" if isinstance(auth, str) and re.fullmatch(r"[A-Za-z0-9+/=]+", auth) else ""
