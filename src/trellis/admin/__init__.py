"""The admin runtime of jobs on JetStream: a projection, and what needs one.

The runtime projects the stream into the tables of a SQL engine, answers verbs that need an index
over all jobs, serves the RPC `Jobs.*`, expires jobs and turns given-up deliveries into dead
letters. It may be down: jobs are created, run and settled without it. May import the engines,
`control` and `insight`. Start reading at `runtime.py`, then `projector.py` and `messages.py`.
"""
