"""The hot-swap benchmark: how long sampling stalls while weights change."""
