"""The ranks benchmark: time, memory and results of plans of ranks beside one process."""
