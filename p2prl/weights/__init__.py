"""A policy's words on disk: one file, patched in place from version to version, whole after any crash.

Between the codec (`patches`), which knows no files, and the rooms that load, serve or follow weights. No torch here: a
peer without a GPU stack keeps weights too. What is written when, and why any crash can be mended: `weight_file`.
"""
