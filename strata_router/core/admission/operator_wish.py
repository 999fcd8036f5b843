"""What the operator wants of the engine until it is done: the wish behind ``on MODEL`` and ``off``.

While a wish stands it is like holding the engine's lock: nothing is admitted, running leases end in
their own time, then the wish is carried out. ``turns`` serves it before any ticket.
"""

from dataclasses import dataclass

from strata_router.core.vocabulary import ModelId


@dataclass(slots=True)
class OperatorWish:
    """model: what is to be loaded, or None to have nothing loaded.

    decided: its Load or Unload was handed out and has not been answered.
    """

    model: ModelId | None
    decided: bool = False
