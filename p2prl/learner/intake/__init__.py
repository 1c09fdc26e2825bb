"""Intake of groups: inbox, storage, verification, receipts, and the buffer of verified groups."""
