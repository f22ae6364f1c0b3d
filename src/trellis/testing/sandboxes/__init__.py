"""The sandbox: a service bound to the memory engine and a manual clock, for tests of users."""
