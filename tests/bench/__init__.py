"""``make bench``: what the daemon costs, next to what stands in its place elsewhere. See ``__main__``."""
