"""Chunk relay: download, upload, chunk and peer selection, upload budgets."""
