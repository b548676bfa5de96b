"""`python -m falaj.worker CONTEXT SLOT`: the launcher."""

import sys

from falaj.worker.launcher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
