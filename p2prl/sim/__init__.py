"""Simulator: a whole swarm in one thread, the product's state machines over a seeded network on virtual time.

It may use every role; benchmarks, testing tools and the command line use it.
"""
