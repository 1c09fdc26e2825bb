"""Seeded fuzzing of every decoder that a stranger's bytes reach: targets, inputs, and a campaign that judges them."""
