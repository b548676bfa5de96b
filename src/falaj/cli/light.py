"""What modules of others import and no command needs, left out of a command's start.

Only the command does this, in its own process: to a program that imports us, modules are what they are.
"""

import os
import typing

from falaj.core.later import put_off


def start_light() -> None:
    """Put off what is imported to be there and seldom used; whoever uses it after all loads it by that."""
    for name in ("inspect", "ipaddress", "textwrap", "ntpath"):  # for dataclasses, urllib.parse and pathlib
        put_off(name)
    for name in ("inspect", "msgpack", "toml", "yaml"):
        put_off(f"msgspec.{name}")
    # Of ciphers those with a seal are used, which are written in Rust; the others are ten modules of Python.
    from cryptography.hazmat import primitives

    put_off("cryptography.hazmat.primitives.ciphers", __path__=[f"{primitives.__path__[0]}/ciphers"])
    # `uuid` asks for one word, and msgspec for what Python itself has by now.
    put_off("platform", system=lambda: os.uname().sysname)
    # A command of httpx's own, and with it rich, click and pygments; and a way to pack that no answer of ours has.
    put_off("httpx._main", main=lambda: None)
    put_off("zstandard")
    # What `secrets` gives is what the system gives; for numbers within bounds it brings the whole of `random` along.
    put_off("secrets", token_bytes=_token_bytes, token_hex=lambda nbytes=None: _token_bytes(nbytes).hex())
    put_off(
        "typing_extensions", **{name: getattr(typing, name) for name in ("get_type_hints", "Required", "NotRequired")}
    )


def _token_bytes(nbytes: int | None = None) -> bytes:
    return os.urandom(32 if nbytes is None else nbytes)
