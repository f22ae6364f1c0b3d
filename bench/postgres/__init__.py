"""What the PostgreSQL engine costs: each guarantee alone, and as everything grows."""
