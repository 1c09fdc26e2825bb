"""Following: a copy of the run for a standby learner, what the learner holds back for it, and its promotion."""
