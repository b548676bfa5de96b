"""The errands of the audit desk."""
