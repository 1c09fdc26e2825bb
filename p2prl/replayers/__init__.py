"""Replays in processes of their own, on further cards or CPU threads, for a learner that replays hold back."""
