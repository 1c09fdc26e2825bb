"""Tasks: prompts made from a seed and scored by a program, identical on every machine that recomputes them.

Pure functions of a seed and a text. A stranger's text is never executed or imported: a completion is read by a small
grammar, in time linear in its length. Other packages add tasks through the entry-point group `p2prl.tasks`.
"""
