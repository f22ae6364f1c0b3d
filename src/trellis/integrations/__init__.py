"""Integrations with frameworks; each is imported only by programs that use that framework.

May import every package but `testing`. Start reading at `django/`.
"""
