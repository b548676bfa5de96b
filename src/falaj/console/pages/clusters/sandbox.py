"""Whose jobs run without a sandbox: a red notice on every page that shows clusters."""

from collections.abc import Iterable

from falaj.console.markup import Html, h, join, text
from falaj.console.parts import notice
from falaj.console.view import View
from falaj.fleet.records import Cluster


def sandbox_notices(view: View, clusters: Iterable[Cluster]) -> Html:
    """A warning for each cluster on which jobs run without a sandbox."""
    t = view.t
    exposed = [cluster for cluster in clusters if cluster.unsandboxed]
    hints = [
        join(h.bdi(cluster.name), text(": "), t.of("clusters.sandbox_hint", cluster.unsandboxed)) for cluster in exposed
    ]
    words = [t.of("clusters.unsandboxed", cluster.unsandboxed) for cluster in exposed]
    return join(*(notice("bad", word, hint) for word, hint in zip(words, hints, strict=True)))
