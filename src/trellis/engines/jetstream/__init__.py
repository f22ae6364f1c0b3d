"""The engine that keeps jobs in streams of NATS JetStream.

Start reading at `subjects.py` and `message.py` (what is stored where), then `link.py` (how it is
written). All truth is in one stream; work messages and schedules are hints. May import `core` and
the modules beside this package. Needs the extra `trellis-jobs[nats]`.
"""

from trellis.engines.jetstream.engine import JetStreamEngine

__all__ = ["JetStreamEngine"]
