"""Language models: weights as bytes, loading, seeded sampling, replay, and rewards of completions.

On the same floor as `net`, above the pure rooms. Roles use it only through the `Sampler` and `Scorer` ports. Besides
algorithms and learner, this is the only room that may import torch and transformers at module level.
"""
