"""Clusters: where jobs run. Nodes and GPUs as they are now, how full pools were, what looks wrong, what is bought."""

from falaj.console.page import PageRoute
from falaj.console.pages.clusters.cluster import render_cluster_page, render_node_page
from falaj.console.pages.clusters.cluster_overview import render_clusters_page

ROUTES: tuple[PageRoute, ...] = (
    PageRoute(
        "clusters",
        render_clusters_page,
        walk=("clusters", "clusters?tab=pools", "clusters?tab=health", "clusters?tab=scaling"),
    ),
    PageRoute("clusters/<name>", render_cluster_page, walk=("clusters/hall",)),
    PageRoute("clusters/<ref>", render_cluster_page, walk=("clusters/cluster:house/hall",)),
    PageRoute("clusters/<name>/<node>", render_node_page, walk=("clusters/hall/node-1",)),
)
