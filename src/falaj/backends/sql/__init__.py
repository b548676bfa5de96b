"""What SQLite and PostgreSQL say in the same words: the schema with its steps, and the statements."""
