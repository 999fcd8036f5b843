"""Decides. Values and `now` in, values out: no clock, file, socket, task or log."""
