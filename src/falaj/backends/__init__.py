"""Every third-party system, one file or folder each, found by URL scheme through entry points; never imported by a room."""
