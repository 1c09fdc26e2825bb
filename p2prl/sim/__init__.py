"""Simulator: a whole swarm in one thread, with the product's state machines over a seeded network on virtual time.

It may import every role; benchmarks, testing tools and the command line use it.
"""
