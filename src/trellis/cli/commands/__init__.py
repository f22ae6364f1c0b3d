"""One module per command, light to import: `--help` loads them all, so the rest comes when needed."""
