"""Benchmarks of trust: attacks on the product, what they gain and what defending costs."""
