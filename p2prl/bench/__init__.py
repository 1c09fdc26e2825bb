"""Benchmarks of the learning rules: many seeds of one small policy, trained side by side.

Losses under chosen delays (`staleness`), and rewards and recipes without delay (`comparison`). Above the roles, beside
`config` and `sim`. No network takes part: delays are counted in learner updates, so that what is measured is the
learning and nothing else.
"""
