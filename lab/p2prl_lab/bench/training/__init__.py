"""Parts shared by the benchmarks that train: environments, the stacked decoder, warm starts, grading."""
