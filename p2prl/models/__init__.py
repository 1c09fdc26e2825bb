"""Language models: weights as bytes, loading, seeded sampling, replay, and rewards of completions.

On the same floor as `net`, above the pure packages. Roles use it only through the `Sampler` and `Scorer` ports. On this
floor and below it, only this package and `algorithms` import torch.
"""
