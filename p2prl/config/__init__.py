"""Configuration: where things live, what a run's TOML says, and how the roles are put together from it.

Every setting is a field of the frozen dataclass of its owner; this room only reads, checks and assembles.
"""
