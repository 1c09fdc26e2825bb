"""Where the language model lives: its weights as bytes, its loading, its seeded sampling and its replay.

Beside `net` and above the pure rooms; the roles see it through the `Engine` port alone. The only room that may import
torch and transformers at module level besides the algorithms and the learner.
"""
