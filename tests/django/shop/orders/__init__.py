"""The only app of the shop."""
