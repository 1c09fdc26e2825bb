"""The bound on every score: a scorer's weight, its result, and the weighted sum."""

MAX_SCORE = 100.0
"""Largest magnitude. A reward beyond it would leave float32 gradients of a group with no digits for the others."""
