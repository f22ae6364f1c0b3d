"""No models: Django sends `post_migrate`, which `apps.py` needs, only to apps with this module."""
