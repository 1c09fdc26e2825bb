"""Honest groups of one engine replayed by another: none may be rejected, and an edited token must be found."""
