"""The HTTP engine: speaks for the store behind a `trellis serve`, for programs without a database.

`wire.py` writes and reads values as JSON, by the annotations of the port; `protocol.py` has the
verbs of the port as requests, and is what the server uses too; `transport.py` sends a request and
turns what goes wrong into the errors of `trellis.errors`; `engine.py` is the engine. It may import
`core`, the port and `instrumented` (the list of verbs).
"""
