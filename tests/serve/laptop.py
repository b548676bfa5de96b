"""A laptop that serves: an embedded platform, small models published on it, and the loops running."""

from pathlib import Path
from typing import Any

import falaj
from falaj.core.ref import Ref
from falaj.serve.records import EndpointView
from tests.infer import models
from tests.jobs.lab import until

SMALL = {"cpus": 0.1, "memory": "64MiB"}
STAND_IN = ("python", str(Path(__file__).parent / "stand_in.py"))


class Laptop:
    """`laptop.model()` is a version of a small model; `laptop.show(...)` an endpoint as it stands."""

    def __init__(self, home: Path, here: Any = None) -> None:
        self.home = home
        self.here = here or falaj.connect(str(home / "house"))

    def model(self, name: str = "scorer", seed: int = 7) -> Ref:
        """Another seed is another version."""
        folder = models.mlp(self.home / f"{name}-{seed}", seed=seed)
        ref: Ref = self.here.catalog.publish(f"model:fraud/{name}", str(folder)).ref
        return ref

    def show(self, endpoint: str = "endpoint:fraud/score") -> EndpointView:
        """As it stands now."""
        view: EndpointView = self.here.serve.show(endpoint)
        return view

    def until(self, holds: Any, endpoint: str = "endpoint:fraud/score") -> EndpointView:
        """The endpoint, once this holds of it."""
        view: EndpointView = until(lambda: self.show(endpoint), holds)
        return view


def ready(view: EndpointView, revision: int = 0) -> list[str]:
    """The names of its replicas that answer."""
    return [one.name for one in view.replicas if one.state == "ready" and revision in (0, one.revision)]
