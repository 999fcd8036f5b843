"""Builders for configuration tests: the smallest document, and what parsing says of a document."""

from typing import Any

from strata_router.core.config import Config, ConfigError, Defaults, Parsed, parse_config

NO_SURROUNDINGS = Defaults(runtime_dir=None)
FAMILY = "qwen3.6-35b-a3b"
OTHER_FAMILY = "qwen3.8-flash-next"


def document(**keys: Any) -> dict[str, Any]:
    """One model ``a`` of family ``f``, plus the keys given."""
    return {"models": {"a": {"family": "f"}}} | keys


def parse(given: object) -> Parsed:
    return parse_config(given, NO_SURROUNDINGS)


def config(**keys: Any) -> Config:
    return parse(document(**keys)).config


def problems(given: object) -> dict[str, str]:
    """Message by path; {} when the document is usable. Two problems on one path fail the test."""
    try:
        parse(given)
    except ConfigError as error:
        reported = error.problems
    else:
        return {}
    found = {problem.path: problem.message for problem in reported}
    assert len(found) == len(reported), reported
    return found
