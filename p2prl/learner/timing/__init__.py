"""Timing: which action is due, how long to wait, how often to publish, and which thread computes."""
