"""Tasks: prompts made from a seed and scored by a program, identical on every machine that recomputes them.

Pure functions of a seed and a text. Nothing here runs, parses or imports what a stranger wrote: a completion is read
by a grammar, in time linear in its length. Other packages add tasks through the entry-point group `p2prl.tasks`.
"""
