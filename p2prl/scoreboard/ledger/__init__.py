"""The signed ledger: copies, sources, verification, and the totals folded from it."""
