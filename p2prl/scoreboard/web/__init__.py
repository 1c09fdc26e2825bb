"""The board over HTTP: the JSON API and the page."""
