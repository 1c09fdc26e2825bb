"""One file per command: its options, and the import of its implementation when it runs."""
