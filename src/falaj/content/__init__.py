"""What lies inside files, told by their bytes: formats of models, rows of tables. Nothing is trusted, loaded or run."""
