"""A short turn of every fuzzer, and what longer ones found: `make fuzz` runs them for as long as one likes."""

import base64
import os
import signal

import pytest

from falaj.core.errors import FalajError
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import Target, names, targets
from tests.fuzz.turn import complaint, turn

FOUND = {
    "cursor of an outbox": (b'{"rank-0": [1, 1e999]}', b'{"rank-0": ' + b"[" * 2000),
    "budget": (b"money=" + b"1" * 400 + b"/month",),
    "kinds of nodes": (b"gpu:cpus=1,gpus=99999999999999999999,most=4", b"a:cpus=\xc2\xb2,most=1"),
    "listening address": (b"127.0.0.1:" + b"1" * 5000,),
    "profile of data": (b'{"axes": [{"name": "n", "kind": "number", "low": 1' + b"0" * 400 + b"}]}",),
    "sheet of a model": (b'{"parameters": [1]}', b'{"parameters": "ab"}', b'{"parameters": 1e999}'),
    "search space": (b"n=" + b"9" * 400,),
    "statistics of a column": (b'{"kind": "number", "total": [], "squares": [], "numbers": [0, [], []], "cells": []}',),
    "event": (b'{"actor":' + b"[" * 2000,),
    "record in JSON": (b'{"command": ["p\xce"]}', b'{"a":' * 2000),
    "regime": (b"a = " + b"[" * 2000, b"version = " + b"1" * 5000),
    "telemetry": (b"[2,[0]]\n" + bytes(32), b"[" * 2000),
    "packed telemetry": (base64.b64decode("eJw="),),
    "points": (base64.b64decode("kZSkOi07yz/gACI="),),
    "heads of curves": (base64.b64decode("gaSvb3NzlAABy0AA"),),
    "curve": (base64.b64decode("k8QIAAAAAAAAAADEAQDEAA=="), base64.b64decode("k8QIAAAAAAAAAADEAMQA")),
    "signature of a model": (b'{"mediaType":' + b"[" * 2000, b'{"verificationMaterial":' + b'{"a":' * 2000),
    "form": (b"_given=" + b"[" * 2000, b"f.name={" + b'"a":{' * 2000),
    "arguments of a verb": (b'{"name": "d\xff"}',),
}  # fmt: skip
"""Inputs that a reader once did not survive."""


@pytest.fixture(scope="module")
def every() -> dict[str, Target]:
    return targets()


@pytest.mark.parametrize("name", names())
def test_no_reader_complains(every: dict[str, Target], name: str) -> None:
    target = every[name]
    assert {said: data[:200] for data in FOUND.get(name, ()) if (said := complaint(target, data))} == {}
    assert turn(target, 0, 40)[1] == {}


SIGNED = {"signature of a webhook"}
"""What is refused for want of a secret, as it should be."""


@pytest.mark.parametrize("name", names())
def test_seeds_are_taken_so_that_fuzzers_get_past_the_door(every: dict[str, Target], name: str) -> None:
    for seed in every[name].seeds:
        if name in SIGNED:
            with pytest.raises(FalajError):
                every[name].read(seed)
        else:
            every[name].read(seed)


def test_what_was_found_names_readers_that_are(every: dict[str, Target]) -> None:
    assert FOUND.keys() <= every.keys()


def test_a_reader_that_breaks_or_hangs_is_told_of() -> None:
    def breaks(data: bytes) -> object:
        return {}[data]

    def hangs(_: bytes) -> object:
        os.kill(os.getpid(), signal.SIGVTALRM)  # as the timer does
        return None

    assert complaint(Target("a", breaks, ()), b"x") == "KeyError in test_fuzz.py, breaks"
    assert complaint(Target("a", hangs, ()), b"x") == "takes more than 2 s"


def test_inputs_can_be_made_again() -> None:
    seeds = (b"one", b"another")
    made = [mutated(seeds, number) for number in range(200)]
    assert made == [mutated(seeds, number) for number in range(200)]
    assert len(set(made)) > 150
