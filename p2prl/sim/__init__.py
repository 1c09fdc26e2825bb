"""A whole swarm in one thread: the same cores over a seeded network on virtual time.

Floor 6: it may use every role; nothing but the command line uses it.
"""
