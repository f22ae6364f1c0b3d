"""What people see of a URL has no password in it."""

from __future__ import annotations

import pytest

from trellis.engines.redaction import as_argument, shown, without_values


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("postgresql://app@db.example/shop", "postgresql://app@db.example/shop"),
        (
            "postgresql://app:s3cret@db.example/shop?schema=jobs",
            "postgresql://app:***@db.example/shop?schema=jobs",
        ),
        (
            "postgresql://db.example/shop?password=s3cret&sslmode=require",
            "postgresql://db.example/shop?password=***&sslmode=require",
        ),
        (
            "postgresql://pool:1@p/shop?pooler=transaction&listen=postgresql://app:s3cret@db/shop",
            "postgresql://pool:***@p/shop?pooler=transaction&listen=postgresql://app:***@db/shop",
        ),
        ("postgresql://db/shop?sslpassword=s3cret", "postgresql://db/shop?sslpassword=***"),
    ],
)
def test_passwords_are_hidden_wherever_a_url_has_them(url: str, seen: str) -> None:
    assert shown(url) == seen


def test_a_url_on_a_command_line_is_quoted_and_says_what_is_hidden() -> None:
    assert as_argument("sqlite:///jobs.db") == "sqlite:///jobs.db"
    assert as_argument("postgresql://a:s@db/shop?schema=jobs") == (
        "'postgresql://a:***@db/shop?schema=jobs' (with the password for ***)"
    )


@pytest.mark.parametrize(
    ("statement", "seen"),
    [
        ("lock  table\n trellis.queue", "lock table trellis.queue"),
        ("select * from order2 where id = $1", "select * from order2 where id = $1"),
        ("update u set p = 'a\\' where x = 'b'", "update u set p = ..."),
        ("update u set p = $body$secret$body$", "update u set p = ..."),
        ("select 4111111111111111", "select ..."),
        ("select x -- secret", "select x ..."),
        ("select x /* secret */", "select x ..."),
        ("/* secret */ select x", ""),
        (f"select {'x, ' * 100}", f"select {'x, ' * 37}x, ..."),
    ],
)
def test_values_and_comments_in_the_statement_of_another_program_are_hidden(
    statement: str, seen: str
) -> None:
    assert without_values(statement) == seen
