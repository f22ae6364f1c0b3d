"""What a service declares about its jobs: types, codecs, policies, keys, handlers.

Used by clients, which create jobs, and by workers, which run them, so that both read a payload the
same way. May import `core` and `errors`. Start reading at `job_type.py`, then `options.py`,
`signature.py` and `codec.py`.
"""
