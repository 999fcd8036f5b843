"""The simulated Strata server: ``python -m serve.server --engine strata --config PROFILE ...``.

Behaves on the outside as facts about Strata's server say: exit statuses, what is printed, that
nothing listens before the model is loaded, and the order of its end. Everything else is in the
modules beside this one, which are compiled once; this one is compiled at every start.
"""

import sys

# Compiling these modules takes longer than a whole start should (80 ms): keep the result even
# where PYTHONDONTWRITEBYTECODE asks otherwise. A folder that cannot be written is no error.
sys.dont_write_bytecode = False

from .stamps import stamps_for  # noqa: E402 - after the line above, or it would be too late

# Before the slow imports: the sooner the life lock is looked at, the stronger its proof.
STAMPS = stamps_for(sys.argv[1:])

from .life import main  # noqa: E402 - see above

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STAMPS))
