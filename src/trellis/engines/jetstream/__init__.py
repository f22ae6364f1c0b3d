"""The engine that keeps jobs in streams of NATS JetStream.

Start reading at `subjects.py` and `message.py` (what is stored where), then `writing.py` (how it is
written). All truth is in one stream; work messages and schedules are hints. May import `core` and
the modules beside this package. Needs the extra `trellis-jobs[nats]`.
"""

from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.service_engine import ServiceEngine

__all__ = ["JetStreamEngine", "ServiceEngine"]
