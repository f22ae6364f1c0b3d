"""Frameworks that Trellis works inside of; each is imported only by programs that use it."""
