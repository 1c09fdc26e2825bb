"""Evaluation of a policy: mean reward, greedy and k-sample accuracy, and a probe of a new run."""
