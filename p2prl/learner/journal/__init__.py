"""The crash-safe record of a run in one SQLite file."""
