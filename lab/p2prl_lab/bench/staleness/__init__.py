"""The staleness benchmark: losses under delay."""
