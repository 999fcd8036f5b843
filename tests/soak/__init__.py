"""Random faults against one daemon, judged by bookkeeping of its own: ``make soak MINUTES=n SEED=s``.

``actors`` do things to the daemon and tell the ``Books`` what must follow, ``books`` judges; neither
asks the daemon whether it is well. Source: reliability.md.
"""
