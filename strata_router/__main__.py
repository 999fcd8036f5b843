"""``python -m strata_router``: the same as the ``strata-router`` command."""

import sys

from strata_router.cli.main import main

sys.exit(main())
