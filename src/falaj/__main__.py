"""`python -m falaj` is `falaj`."""

from falaj.cli import main

raise SystemExit(main())
