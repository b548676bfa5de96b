"""What the users of experiments do beside the platform: plot curves, carry in runs recorded offline."""
