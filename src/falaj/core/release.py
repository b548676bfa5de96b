"""Which release this is, for those who may not look at the package itself: its front leads to the platform."""

VERSION = "0.1.0"
"""As `falaj.__version__` and the project's file say it; a test holds them together."""
