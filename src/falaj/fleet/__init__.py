"""The fleet: clusters, their nodes, and the tree of queues that shares them. What runs there is the room of jobs'."""
