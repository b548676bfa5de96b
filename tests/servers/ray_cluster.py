"""A Ray cluster of three nodes on one machine, by Ray's own means: run by the Python that has Ray.

python ray_cluster.py DASHBOARD_PORT AGENT_PORT      and on its stdin `kill 127.0.0.3` or `add 127.0.0.3`
"""

import sys

from ray.cluster_utils import Cluster  # type: ignore[import-not-found,unused-ignore]

_NODE = {"num_cpus": 2, "memory": 512 << 20, "object_store_memory": 100 << 20}


def main(port: str, agent: str) -> None:
    # 127.0.0.1 would be taken for the machine's outer address.
    dashboard = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": int(port)}
    head = {**_NODE, **dashboard, "node_ip_address": "127.0.0.2", "dashboard_agent_listen_port": int(agent)}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {}
    for address in ("127.0.0.3", "127.0.0.4"):
        nodes[address] = cluster.add_node(**_NODE, node_ip_address=address)
    for line in sys.stdin:
        word, address = line.split()
        if word == "kill":
            cluster.remove_node(nodes.pop(address), allow_graceful=False)
        else:
            nodes[address] = cluster.add_node(**_NODE, node_ip_address=address)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
