"""Configuration: read and check run folders, worker folders and run.toml, and assemble the roles from them.

Every setting is a field of a frozen dataclass beside the code that uses it; this package only reads, checks and
assembles.
"""
