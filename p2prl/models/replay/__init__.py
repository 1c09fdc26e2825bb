"""Replay of rollout groups at their declared policy, in full or of their first tokens, and its probes."""
