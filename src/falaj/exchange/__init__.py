"""How versions travel to and from other tools: Delta Lake, Iceberg, DVC, OCI registries, git, file-system mounts."""
