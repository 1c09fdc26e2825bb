"""The scoreboard's role: fold the signed ledger into a leaderboard and serve it as JSON and one page."""
