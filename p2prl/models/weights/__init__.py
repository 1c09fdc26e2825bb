"""Weights of a policy as bytes in one layout: read, written, hashed, and as adapters."""
