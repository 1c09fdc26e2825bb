"""The seeded draw: the token whose logit / temperature plus Gumbel noise is largest, and how far others lie below it.

`draw` picks an implementation by device and size. All give the token that `gumbel_noise.gumbel` defines,
bit for bit, and avoid its two float64 logarithms per token: the noise grows with the hash, so a bound from the hash
alone rules out nearly every token, and logarithms are taken of the few that are left.
"""
