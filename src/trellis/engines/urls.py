"""URLs as people may see them: in logs, on screens and in error texts."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit


def shown(url: str) -> str:
    """Return the URL without its password.

    >>> shown("postgresql://app:s3cret@db.example/shop?schema=jobs")
    'postgresql://app:***@db.example/shop?schema=jobs'
    >>> shown("sqlite:///jobs.db")
    'sqlite:///jobs.db'
    """
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{quote(parts.username or '', safe='')}:***@{host}"
    return urlunsplit(parts._replace(netloc=netloc))
