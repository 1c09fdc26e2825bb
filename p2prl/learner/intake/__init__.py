"""Groups on their way in: inbox, storage, verification, receipts, and the buffer of fresh groups."""
