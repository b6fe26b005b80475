"""The version, in one place: read by pyproject.toml without importing torch."""

__version__ = "0.2.0"
