"""A load run: many remote worker sessions and open streams on one server while jobs flow."""
