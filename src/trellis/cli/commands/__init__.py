"""One module per command, light to import, because `--help` loads them all."""
