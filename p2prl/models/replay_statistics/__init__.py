"""Judge a replay: the noise that honest engines differ by, as derived and as measured. Pure, no torch."""
