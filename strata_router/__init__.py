"""strata-router: a daemon that owns one LLM engine process and lends it out fairly."""

__version__ = "0.1.0"
