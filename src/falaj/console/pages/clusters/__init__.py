"""Clusters: where jobs run. Nodes and GPUs as they are now, how full pools were, what looks wrong, what is bought."""

from falaj.console.page import Route
from falaj.console.pages.clusters.cluster import cluster, node
from falaj.console.pages.clusters.fleet import clusters

ROUTES: tuple[Route, ...] = (
    Route("clusters", clusters, walk=("clusters", "clusters?tab=pools", "clusters?tab=health", "clusters?tab=scaling")),
    Route("clusters/<name>", cluster, walk=("clusters/hall",)),
    Route("clusters/<ref>", cluster, walk=("clusters/cluster:house/hall",)),
    Route("clusters/<name>/<node>", node, walk=("clusters/hall/node-1",)),
)
