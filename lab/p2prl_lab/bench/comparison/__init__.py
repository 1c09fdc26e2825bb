"""On-policy comparisons: reward shaping and PPO recipes."""
