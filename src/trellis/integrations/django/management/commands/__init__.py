"""The commands of `manage.py`: `trellis`."""
