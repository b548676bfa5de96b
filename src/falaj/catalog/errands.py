"""What the catalog's users do beside the platform: publish a folder, check a version out, compare, verify."""
