"""Sampling engines by name, one room for each inference library."""
