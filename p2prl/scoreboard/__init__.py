"""The scoreboard's role: fold the signed ledger into a leaderboard and serve it as JSON and one page.

Any peer can run one: the page is a pure fold over the ledger's chain, so no board is a source of truth and two boards
of one height show the same numbers. Light by design: no torch, no GPU, no database server, no address of anybody.
"""
