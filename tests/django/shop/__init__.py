"""A small Django project."""
