"""Indexes of runs: keep and serve signed listings, and choose by them the run that needs a machine most."""
