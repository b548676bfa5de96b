"""What carries versions to and from other tools, from the catalog's command line."""
