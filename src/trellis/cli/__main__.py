"""`python -m trellis.cli` is the same as `trellis`."""

from trellis.cli.app import main

main()
