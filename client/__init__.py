"""The volunteer's role: take the newest policy, sample slot after slot, sign, spool, deliver."""
