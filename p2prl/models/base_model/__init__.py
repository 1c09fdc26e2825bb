"""Base models from a directory or a hub: their architectures, attention kernels, names and licenses."""
