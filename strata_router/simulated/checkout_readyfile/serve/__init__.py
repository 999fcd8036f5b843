"""The ``serve`` package of ``checkout``, with the readiness option switched on.

No module of its own: the search path of the package is the other checkout's folder.
"""

import os

READY_FILE_OPTION = True

_SIMULATED = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
__path__ = [os.path.join(_SIMULATED, "checkout", "serve")]
