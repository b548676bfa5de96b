"""What people who run flows do beside the platform."""
