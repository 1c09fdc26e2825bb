"""The command line: typer commands, lazy imports, exit codes. The top floor."""
