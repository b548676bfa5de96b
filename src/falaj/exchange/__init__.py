"""How versions travel to and from other tools: Delta Lake, Iceberg, DVC, model hubs, OCI registries, mounts."""
