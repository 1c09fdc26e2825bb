"""Benchmarks of the learning rules: many seeds of one small policy, trained side by side under chosen delays.

Above the roles, beside `config` and `sim`. No network takes part: delays are counted in learner updates, so that what
is measured is the estimator and nothing else.
"""
