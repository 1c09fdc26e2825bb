"""Gossip of signed envelopes: validation, announcements, ledger sync, the final ledger head."""
