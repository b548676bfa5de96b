"""A server of small models in a thread of this process: a real engine behind the real doors, without the process."""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from falaj.infer.engine import InferenceEngine
from falaj.infer.records import LoadRuntime, ModelConfig, ServerConfig
from falaj.infer.rest_handler import RestInferHandler
from falaj.infer.token_keys import TokenKeys
from falaj.oip.http1_parser import Http1Limits
from falaj.oip.http1_server import serve_http
from tests.infer import models
from tests.oip.serving import Running, looping

TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Served(Running):
    """What runs, and its engine."""

    engine: InferenceEngine

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextlib.contextmanager
def served(
    folder: Path,
    *,
    open_to_all: bool = False,
    load: LoadRuntime | None = None,
    limits: Http1Limits | None = None,
    options: Mapping[str, Any] | None = None,
    datatypes: Sequence[str] = models.ECHOED,
) -> Iterator[Served]:
    """`mlp` 1 and 2, `echo` 1, `one` 1 (an echo of one tensor), and in the repository `spare` 1. With `load`, one model
    `made` of that instead."""
    if load is None:
        places = [("mlp", "1"), ("mlp", "2"), ("echo", "1"), ("one", "1")]
        for name, version in places[:2]:
            models.mlp(folder / name / version)
        models.echo(folder / "echo" / "1", datatypes)
        models.echo(folder / "one" / "1", ("FP32",))
        configs = [ModelConfig(name, version, str(folder / name / version)) for name, version in places]
        models.mlp(folder / "repository" / "spare" / "1")
    else:
        configs = [ModelConfig("made", "1", str(folder), **(options or {}))]
    config = ServerConfig(models=tuple(configs), repository=str(folder / "repository"))

    async def begin() -> Served:
        engine = InferenceEngine(config, load)
        for one in configs:
            await engine.placed(one)
        keys = TokenKeys([hashlib.sha256(TOKEN.encode()).hexdigest()], open_to_all=open_to_all)
        server = await serve_http(RestInferHandler(engine, keys, version="0"), "127.0.0.1", 0, limits=limits)
        here = Served(loop, server)
        here.engine = engine
        return here

    with looping() as loop:
        here = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        try:
            yield here
        finally:
            here.wait(here.server.drain(0.0))
            here.wait(here.engine.close(1.0))
