"""Devices: which to use, whether they repeat to the bit, how much memory they have, and how they fail."""
