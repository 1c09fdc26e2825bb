"""Commands of `p2prl bench` that the laboratory adds; light to import, as their help pages are."""
