"""One thread with an event loop, through which plain functions call coroutines."""
