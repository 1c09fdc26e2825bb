"""Life of a listing: how long it holds without being renewed, and how often its learner renews it."""

MAX_LIFE_S = 900.0
"""From the signing of a listing to its end: a learner that was killed is listed no longer than this."""

USUAL_LIFE_S = 300.0
"""Life that a learner gives its listing, which it renews every minute: four renewals may be lost."""

RENEW_S = 60.0
"""Time between two listings: an index keeps one for five minutes, and what a run needs changes no faster."""
