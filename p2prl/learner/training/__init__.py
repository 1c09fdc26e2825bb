"""Training: the loss with its guards, the optimizer step, and the metrics log."""
