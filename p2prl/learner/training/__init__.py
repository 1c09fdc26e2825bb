"""Training: the loss with its guards, the optimizer step, and the log of figures."""
