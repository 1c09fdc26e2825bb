"""Losses for stale rollouts: pure functions of tensors, each with one formula, one config and one docstring.

Advantages, aggregation, guards and rewards are separate knobs in separate files, so that two losses compared on one
benchmark differ in the loss alone. The learner calls this room; it does no I/O, reads no clock and moves no device.
"""
