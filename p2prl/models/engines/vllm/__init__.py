"""The engine on vLLM inside this process: the run's seeded draw in place of its own, and weights loaded in place."""
