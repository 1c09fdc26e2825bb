"""Scoreboard role: fold the signed ledger into a leaderboard and serve it as JSON and as one page.

Any peer can run one. The page is a pure fold over the ledger's chain, so no board is a source of truth, and two boards
at the same height show the same numbers. It needs no torch, GPU or database server, and
holds no address but those of the join link.
"""
