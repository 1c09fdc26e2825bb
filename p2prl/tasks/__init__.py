"""Prompts and their scoring: pure functions of a seed and a text, the same on every machine that recomputes them.

Above the protocol, below everything that samples or learns. Nothing here runs, parses or imports what a stranger wrote:
a completion is read by a grammar, in time linear in its length.
"""
