"""Two roles: the volunteer (take the newest policy, sample slots, sign, spool, deliver) and the seeder."""
