"""Rewards of completions, from procedural tasks, scorers of data and process scorers."""
