"""The publish benchmark: what a new version costs a learner."""
