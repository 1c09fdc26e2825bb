"""Data tasks: rows of a researcher's data set, packed once, read by every peer of the run.

* `packed_file` — the packed file: records that any machine reads by number, without loading the file.
* `packed_prompts` — packed prompts as token ids: all that a volunteer needs.
* `packed_rows` — packed rows as the scorers see them.
"""
