"""Data tasks: rows of a researcher's data set, packed once, read by every peer of the run.

* `packed_file` — the packed file: records that any machine reads by number, without loading the file.
* `packed_data` — packed prompts as token ids, all that a volunteer needs, and packed rows as the scorers see them.
"""
