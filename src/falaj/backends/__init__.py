"""Every third-party system, found by URL scheme through entry points; never imported by a room."""
