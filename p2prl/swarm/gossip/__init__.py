"""Gossip of signed envelopes: validation, forwarding, announcements, deduplication, ledger pages and the run's end."""
