"""Bytes that are nearly right: seeds, changed as strangers change them, by a number."""

import random
from collections.abc import Sequence

LARGEST_BYTES = 1 << 16
_ODD = (
    b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x7f\xff\xff\xff", b"\xff" * 8,
    b"\x80" * 10 + b"\x01",
    b"-1", b"0", b"1e999", b"NaN", b"-Infinity", b"99999999999999999999", b"1" * 5000, b"\xc2\xb2", b"\xd9\xa3",
    b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b"[" * 2000, b'{"a":' * 2000, b"(" * 500, b"\\u0000", b"%00",
    b"..", b"../", b"/", b"//", b"\\", b"\n", b"\r\n", b"\r\n\r\n", b";", b",", b"=", b":", b"@", b"*", b"-", b"|",
    b" ",
    b"'", b'"', b"&a [*a]", b"<<: *a", b"!!python/object:os.system", b"__proto__", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"\xe2\x80\xae", b"\xf0\x9f\x92\xa7",
)  # fmt: skip


def mutated(seeds: Sequence[bytes], number: int) -> bytes:
    """The bytes of this number: a seed with one to six changes."""
    chance = random.Random(number)
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        _CHANGES[chance.randrange(len(_CHANGES))](data, chance, seeds)
    return bytes(data[:LARGEST_BYTES])


def _place(data: bytearray, chance: random.Random) -> int:
    return chance.randint(0, len(data))


def _flip(data: bytearray, chance: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(data: bytearray, chance: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _insert(data: bytearray, chance: random.Random, _: Sequence[bytes]) -> None:
    at = _place(data, chance)
    data[at:at] = chance.choice(_ODD)


def _replace(data: bytearray, chance: random.Random, _: Sequence[bytes]) -> None:
    at = _place(data, chance)
    data[at : at + chance.randint(1, 8)] = chance.choice(_ODD)


def _value(data: bytearray, chance: random.Random, _: Sequence[bytes]) -> None:
    """One value of a text that has punctuation becomes another: the shape stays, the type does not."""
    marks = [at for at, byte in enumerate(data) if byte in b':,[{="'] or [0]
    start = chance.choice(marks) + 1
    stop = next((at for at in range(start, len(data)) if data[at] in b",]}\n&;"), len(data))
    data[start:stop] = chance.choice(_ODD)


def _cut(data: bytearray, chance: random.Random, _: Sequence[bytes]) -> None:
    at = _place(data, chance)
    del data[at : at + chance.choice((1, 2, 8, len(data)))]


def _repeat(data: bytearray, chance: random.Random, _: Sequence[bytes]) -> None:
    at = _place(data, chance)
    data[at:at] = data[at : at + chance.choice((1, 4, 32))] * chance.choice((1, 3, 200))


def _splice(data: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    other = chance.choice(seeds)
    data[_place(data, chance) :] = other[chance.randint(0, len(other)) :]


_CHANGES = (_flip, _set, _insert, _replace, _value, _value, _cut, _repeat, _splice)
