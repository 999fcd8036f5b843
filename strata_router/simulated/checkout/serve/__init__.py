"""A stand-in for Strata's ``serve`` package, started as ``python -m serve.server``.

Standard library only and nothing of strata_router: the folder above is the *checkout* that a
configuration names as ``strata_dir``, and the interpreter that runs it may be any Python 3.11+.
"""

READY_FILE_OPTION = False
"""Whether ``serve.server`` offers ``--ready-file``; public Strata does not."""
