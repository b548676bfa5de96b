"""A forger's workbench: signed tokens made by hand, and every way to make a false one out of a true one."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Key = ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
STRANGER_RSA = rsa.generate_private_key(65537, 2048)
STRANGER_EC = ec.generate_private_key(ec.SECP256R1())
STRANGER_ED = ed25519.Ed25519PrivateKey.generate()


@dataclass(frozen=True)
class Bench:
    """A true token's parts, and who is to judge it."""

    now: float
    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    key: Key
    judge: Callable[[str], Any]

    def token(self) -> str:
        return sign(self.header, self.claims, self.key)

    def saying(self, **claims: Any) -> str:
        kept = {name: value for name, value in {**self.claims, **claims}.items() if value is not ...}
        return sign(self.header, kept, self.key)

    def headed(self, **header: Any) -> str:
        kept = {name: value for name, value in {**self.header, **header}.items() if value is not ...}
        return sign(kept, self.claims, self.key)

    def by(self, key: Key, **header: Any) -> str:
        return replace(self, key=key).headed(**header)


def sign(header: Mapping[str, Any] | str, claims: Mapping[str, Any] | str, key: Key) -> str:
    """Sign whatever is given, right or wrong; texts go in as they are."""
    head, body = (part if isinstance(part, str) else json.dumps(part) for part in (header, claims))
    message = f"{b64(head.encode())}.{b64(body.encode())}"
    algorithm = "" if isinstance(header, str) else str(header.get("alg"))
    return f"{message}.{b64(signature(key, message.encode(), algorithm))}"


def signature(key: Key, message: bytes, algorithm: str) -> bytes:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    if isinstance(key, rsa.RSAPrivateKey):
        scheme = padding.PSS(padding.MGF1(SHA256()), 32) if algorithm == "PS256" else padding.PKCS1v15()
        return key.sign(message, scheme, SHA256())
    r, s = utils.decode_dss_signature(key.sign(message, ec.ECDSA(SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwk(key: Key, kid: str, **more: Any) -> dict[str, Any]:
    """The public half as a provider publishes it."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        numbers = public.public_numbers()
        size = (numbers.n.bit_length() + 7) // 8
        shape = {"kty": "RSA", "n": b64(numbers.n.to_bytes(size, "big")), "e": b64(numbers.e.to_bytes(3, "big"))}
    elif isinstance(public, ec.EllipticCurvePublicKey):
        point = public.public_numbers()
        shape = {
            "kty": "EC",
            "crv": "P-256",
            "x": b64(point.x.to_bytes(32, "big")),
            "y": b64(point.y.to_bytes(32, "big")),
        }
    else:
        shape = {"kty": "OKP", "crv": "Ed25519", "x": b64(public.public_bytes(Encoding.Raw, PublicFormat.Raw))}
    return {**shape, "kid": kid, "use": "sig", **more}


def _with_secret(bench: Bench, secret: bytes, algorithm: str = "HS256") -> str:
    """The old confusion: the public key, which everybody has, taken as a shared secret."""
    header = {**bench.header, "alg": algorithm}
    message = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(dict(bench.claims)).encode())}"
    return f"{message}.{b64(hmac.new(secret, message.encode(), hashlib.sha256).digest())}"


def _pem(key: Key) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _raw(bench: Bench, claims: str) -> str:
    return sign(bench.header, claims, bench.key)


def _double(bench: Bench, name: str, value: Any) -> str:
    return _raw(bench, json.dumps(dict(bench.claims))[:-1] + f", {json.dumps(name)}: {json.dumps(value)}}}")


def _parts(token: str, *, header: Any = None, claims: Any = None, seal: str | None = None) -> str:
    """The same token with one part changed and the old signature."""
    old = token.split(".")
    new = [old[0] if header is None else b64(json.dumps(header).encode())]
    new.append(old[1] if claims is None else b64(json.dumps(claims).encode()))
    return ".".join([*new, old[2] if seal is None else seal])


FORGERIES: dict[str, Callable[[Bench], str]] = {
    "alg none": lambda b: _parts(b.token(), header={**b.header, "alg": "none"}, seal=""),
    "alg none, old signature": lambda b: _parts(b.token(), header={**b.header, "alg": "none"}),
    "alg nOnE": lambda b: b.headed(alg="nOnE"),
    "no alg": lambda b: b.headed(alg=...),
    "alg is a list": lambda b: b.headed(alg=["EdDSA"]),
    "HS256 with the public key as secret": lambda b: _with_secret(b, _pem(b.key)),
    "HS512 with the public key as secret": lambda b: _with_secret(b, _pem(b.key), "HS512"),
    "HS256 with an empty secret": lambda b: _with_secret(b, b""),
    "key in the header": lambda b: b.by(STRANGER_ED, alg="EdDSA", jwk=jwk(STRANGER_ED, "x"), kid=...),
    "key in the header, true signature": lambda b: b.headed(jwk=jwk(b.key, "x")),
    "jku": lambda b: b.headed(jku="https://evil.example/keys"),
    "x5u": lambda b: b.headed(x5u="https://evil.example/chain"),
    "x5c": lambda b: b.headed(x5c=["MII"]),
    "crit unknown": lambda b: b.headed(crit=["later"], later=True),
    "crit known": lambda b: b.headed(crit=["exp"], exp=1),
    "b64 false": lambda b: b.headed(b64=False, crit=["b64"]),
    "zip": lambda b: b.headed(zip="DEF"),
    "another type": lambda b: b.headed(typ="logout+jwt"),
    "type is a number": lambda b: b.headed(typ=1),
    "unknown kid": lambda b: b.headed(kid="nobody"),
    "no kid": lambda b: b.headed(kid=...),
    "kid is a path": lambda b: b.headed(kid="../../etc/passwd"),
    "kid is a number": lambda b: b.headed(kid=1),
    "stranger's Ed25519 key": lambda b: b.by(STRANGER_ED, alg="EdDSA"),
    "stranger's RSA key": lambda b: b.by(STRANGER_RSA, alg="RS256"),
    "stranger's EC key": lambda b: b.by(STRANGER_EC, alg="ES256"),
    "claims changed": lambda b: _parts(b.token(), claims={**b.claims, "tenant": "other", "groups": ["admins"]}),
    "header changed": lambda b: _parts(b.token(), header={**b.header, "x5t": "abc"}),
    "signature cut": lambda b: b.token()[:-8],
    "signature empty": lambda b: _parts(b.token(), seal=""),
    "signature zero": lambda b: _parts(b.token(), seal="A" * 86),
    "padding": lambda b: b.token() + "=",
    "white space": lambda b: b.token().replace(".", ". "),
    "four parts": lambda b: b.token() + ".AAAA",
    "two parts": lambda b: b.token().rpartition(".")[0] + ".",
    "not for us": lambda b: b.saying(aud="somebody-else"),
    "for nobody": lambda b: b.saying(aud=...),
    "audience is a number": lambda b: b.saying(aud=7),
    "no end": lambda b: b.saying(exp=...),
    "end is a text": lambda b: b.saying(exp=str(int(b.now + 60))),
    "end is true": lambda b: b.saying(exp=True),
    "end is beyond time": lambda b: b.saying(exp=10**15),
    "lives too long": lambda b: b.saying(exp=b.now + 10 * 86_400),
    "ended": lambda b: b.saying(exp=b.now - 1),
    "ends now": lambda b: b.saying(exp=int(b.now)),
    "no start": lambda b: b.saying(iat=...),
    "issued in the future": lambda b: b.saying(iat=b.now + 90),
    "begins in the future": lambda b: b.saying(nbf=b.now + 90),
    "start is NaN": lambda b: _raw(b, json.dumps({**b.claims, "iat": float("nan")})),
    "no subject": lambda b: b.saying(sub=...),
    "empty subject": lambda b: b.saying(sub=""),
    "subject is a list": lambda b: b.saying(sub=["a"]),
    "subject with a line end": lambda b: b.saying(sub="a\nb"),
    "subject said twice": lambda b: _double(b, "sub", "admin"),
    "audience said twice": lambda b: _double(b, "aud", "falaj"),
    "end said twice": lambda b: _double(b, "exp", int(b.now + 60)),
    "alg said twice": lambda b: sign(json.dumps(dict(b.header))[:-1] + ', "alg": "none"}', dict(b.claims), b.key),
    "inner name said twice": lambda b: _raw(b, json.dumps(dict(b.claims))[:-1] + ', "x": {"a": 1, "a": 2}}'),
    "claims are a list": lambda b: _raw(b, "[1]"),
    "claims are not JSON": lambda b: _raw(b, "{"),
    "claims are deep": lambda b: _raw(b, "[" * 5000 + "]" * 5000),
    "claims are huge": lambda b: b.saying(more="x" * 20_000),
}


def with_loose_bits(token: str) -> str:
    """Another text for the same bytes: the last character of a part has bits that decode to nothing."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    parts = token.split(".")
    for place in (1, 0):
        if len(parts[place]) % 4:
            parts[place] = parts[place][:-1] + letters[letters.index(parts[place][-1]) ^ 1]
            return ".".join(parts)
    return ""
