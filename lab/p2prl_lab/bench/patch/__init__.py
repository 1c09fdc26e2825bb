"""The patch benchmark: size and speed of the weight-patch codec."""
