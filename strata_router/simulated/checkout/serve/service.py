"""The state of one simulated Strata server, and the (un)loading of its native engine.

Every connection thread shares the one ``Service``. It does not read or write sockets.
"""

import threading
import time
from itertools import count

from .cache import Conversations
from .ledger import Ledger
from .native import EngineStuck, LoadFailed, Native, die
from .profile import Profile, count_failed_start, failed_starts_so_far
from .stamps import Stamps

RELOAD_TRIES = 3

IDLE_CHECK_S = 0.02
"""How often the faults that wait for an idle engine look at the clock."""


class Service:
    """What the threads share."""

    def __init__(self, profile: Profile, stamps: Stamps) -> None:
        self.profile = profile
        self.stamps = stamps
        self.native = Native(profile, stamps)
        self.ledger = Ledger(profile.context_tokens, profile.parallel)
        self.held = Conversations(profile.engine.cache_slots)
        self.turn = threading.Semaphore(profile.parallel)
        self.free_slots = list(range(profile.parallel))
        self.sequence = count(1)
        self.started_unix = time.time()
        self.started = time.monotonic()
        self.is_starting = True
        self.unloaded_on_purpose = False
        self._load_lock = threading.Lock()

    def first_load(self) -> None:
        """The load before the server listens. Raises LoadFailed; the profile may hold faults."""
        knobs = self.profile.engine
        fail_with = knobs.fail_load
        if knobs.needs_alone and not self.stamps.is_alone:
            fail_with = 1
        elif failed_starts_so_far(self.profile) < knobs.fail_first_load:
            count_failed_start(self.profile)
            fail_with = knobs.fail_load_exit
        if fail_with is not None:
            self.stamps.stamp("load_fails", status=fail_with)
        try:
            self.native.start(knobs.load_s, fails=fail_with is not None)
        except LoadFailed as failed:
            status = 1 if fail_with is None else fail_with
            raise LoadFailed(failed.exit_code, status) from failed

    def ensure_loaded(self) -> None:
        """Start the native engine again if it is not there, as a request does.

        Raises LoadFailed after the last try; nothing was sent to the client meanwhile.
        """
        knobs = self.profile.engine
        with self._load_lock:
            if self.native.is_loaded:
                return
            self.held.forget()
            load_s = knobs.load_s if knobs.reload_s is None else knobs.reload_s
            for tries_left in reversed(range(RELOAD_TRIES)):
                try:
                    self.stamps.stamp("reload")
                    self.native.start(load_s, fails=knobs.fail_reload)
                except LoadFailed:
                    if not tries_left:
                        raise
                    time.sleep(knobs.restart_pause_s)
                else:
                    self.unloaded_on_purpose = False
                    return

    def unload(self) -> str:
        """End the native engine: ``unloaded`` or ``not loaded``. Raises EngineStuck."""
        with self._load_lock:
            if not self.native.is_loaded:
                return "not loaded"
            self.unloaded_on_purpose = True
            self.native.stop()
            self.held.forget()
            return "unloaded"

    @property
    def minds_idleness(self) -> bool:
        """Whether anything is to happen after a while without requests."""
        knobs = self.profile.engine
        deaths = (knobs.die_idle_after_s, knobs.engine_dies_idle_after_s)
        return self.profile.idle_unload_s > 0 or any(after_s is not None for after_s in deaths)

    def watch_idleness(self) -> None:
        """Carry out what the profile wants after a while without requests; runs in a thread."""
        knobs = self.profile.engine
        unload_s = self.profile.idle_unload_s
        next_unload_check = time.monotonic()
        while True:
            time.sleep(IDLE_CHECK_S)
            idle_s = self.ledger.idle_s
            if knobs.die_idle_after_s is not None and idle_s > knobs.die_idle_after_s:
                self.stamps.stamp("dies", where="idle")
                die(-9)
            if (
                knobs.engine_dies_idle_after_s is not None
                and idle_s > knobs.engine_dies_idle_after_s
            ):
                self.native.kill()
                self.ledger.touch()
            if unload_s > 0 and time.monotonic() >= next_unload_check:
                next_unload_check = time.monotonic() + max(1.0, min(30.0, unload_s / 4))
                if idle_s > unload_s:
                    self.unload_quietly()

    def unload_quietly(self) -> None:
        try:
            self.unload()
        except EngineStuck:
            self.stamps.stamp("stuck")
