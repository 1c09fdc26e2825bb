"""A checkpoint as a directory that other software loads: its weights, written as a stream, and its model files."""
