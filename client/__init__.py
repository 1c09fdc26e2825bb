"""Roles of the client: the volunteer (samples, signs, spools and delivers groups) and the seeder (serves weights)."""
