"""Forecasts of `p2prl plan` against what simulated swarms of the real roles come to."""
