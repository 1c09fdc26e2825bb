"""Slow, hard prompts on slow machines: what is trained on, and what is dropped for its age."""
