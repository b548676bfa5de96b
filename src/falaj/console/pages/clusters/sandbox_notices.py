"""Whose jobs run without a sandbox: a red notice on every page that shows clusters."""

from collections.abc import Iterable

from falaj.console.components import notice
from falaj.console.markup import Html, escape_text, h, join_html
from falaj.console.page_view import PageView
from falaj.fleet.records import Cluster


def render_sandbox_notices(view: PageView, clusters: Iterable[Cluster]) -> Html:
    """A warning for each cluster on which jobs run without a sandbox."""
    t = view.t
    exposed = [cluster for cluster in clusters if cluster.unsandboxed]
    hints = [
        join_html(h.bdi(cluster.name), escape_text(": "), t.of("clusters.sandbox_hint", cluster.unsandboxed))
        for cluster in exposed
    ]
    messages = [t.of("clusters.unsandboxed", cluster.unsandboxed) for cluster in exposed]
    return join_html(*(notice("bad", message, hint) for message, hint in zip(messages, hints, strict=True)))
