"""Ten things that happen to people who lend a machine, played with the real commands in a terminal."""
