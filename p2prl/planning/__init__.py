"""Planning: whether a fleet of machines keeps a learner at work, forecast before a run begins."""
