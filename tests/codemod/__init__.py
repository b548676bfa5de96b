"""A development tool that renames definitions and moves modules over the whole repository: see `__main__.py`."""
