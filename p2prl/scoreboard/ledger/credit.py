"""Credit: what checked work is worth on every board. Pure."""

from __future__ import annotations


def credit_of(tokens: float, parameters: int) -> float:
    """Tokens as petaFLOP of checked forward work: tokens × 2 × parameters / 10^15. The one definition of credit."""
    return tokens * 2 * parameters / 1e15
