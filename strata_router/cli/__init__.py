"""Talks to a person: arguments, exit codes, tables."""
