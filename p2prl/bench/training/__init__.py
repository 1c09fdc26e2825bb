"""Shared parts of benchmarks that train: environments, the stacked decoder, warm starts, grading."""
