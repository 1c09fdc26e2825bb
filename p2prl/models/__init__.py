"""The language model: its weights as bytes, its loading, its seeded sampling, its replay and the reward of its text.

Beside `net` and above the pure rooms. The roles see it through the `Engine` port alone. Besides the algorithms and the
learner, this is the only room that may import torch and transformers at module level.
"""
