"""The commands this package adds to `fragility`, named as entry points in pyproject.toml."""
