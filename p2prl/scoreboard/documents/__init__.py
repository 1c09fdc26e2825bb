"""Documents of the HTTP API and how they are made from the ledger's fold. Nothing here knows HTTP."""
