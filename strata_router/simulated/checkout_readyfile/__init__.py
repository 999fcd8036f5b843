"""A second checkout of the simulated Strata, whose ``serve.server`` offers ``--ready-file``.

An engine sees this folder as its working directory.
"""
