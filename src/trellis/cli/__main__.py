"""`python -m trellis.cli` is the same as `trellis`."""

from trellis.cli.main import main

main()
