"""A checkout of the simulated Strata, as public Strata is: ``serve.server`` has no ``--ready-file``.

An engine sees this folder as its working directory and ``serve`` as a package of its own; that is
why the modules below import each other by relative names.
"""
