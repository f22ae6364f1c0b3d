"""What a service declares about its jobs: types, codecs, policies, keys, verdicts.

Shared by clients, which create jobs, and workers, which run them, so that both read a payload the
same way. May import `engines` (values only), `core` and `errors`. Start reading at
`declaration.py`.
"""
