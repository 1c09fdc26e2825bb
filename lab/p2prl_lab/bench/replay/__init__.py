"""Replay against generating, and a learner whose volunteers outrun it."""
