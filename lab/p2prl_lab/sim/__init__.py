"""Simulated swarms of the laboratory, on `p2prl.sim`: cheats of every kind, a learner that trusts them, validators."""
