"""A study of scheduling rules in virtual time: ``python -m tests.simulate`` (research/scheduling.md)."""
