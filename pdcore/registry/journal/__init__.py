"""The fleet's history in Redis: every revision of the view, written by any number of writers, read by the CLI."""
