"""The configuration: what may be written, what it means, and what is wrong with what was written."""

from strata_router.core.config.parsing import (
    Defaults,
    Parsed,
    parse_config,
)
from strata_router.core.config.problems import ConfigError, Problem, item_path, key_path
from strata_router.core.config.profile import Profile, ProfileCheck, check_profile
from strata_router.core.config.schema import (
    BUILTIN_ENGINE,
    Config,
    EngineEntry,
    EngineKindName,
    ListenAddress,
    Metadata,
    ModelEntry,
    Readiness,
)

__all__ = [
    "BUILTIN_ENGINE",
    "Config",
    "ConfigError",
    "Defaults",
    "EngineEntry",
    "EngineKindName",
    "ListenAddress",
    "Metadata",
    "ModelEntry",
    "Parsed",
    "Problem",
    "Profile",
    "ProfileCheck",
    "Readiness",
    "check_profile",
    "item_path",
    "key_path",
    "parse_config",
]
