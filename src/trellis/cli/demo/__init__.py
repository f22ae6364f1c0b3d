"""`trellis demo`: real processes, a real database, real accidents, and a check of every promise.

`jobs.py` is what the workers run; `worker.py` is one worker, to do harm to; `stage.py` is the place
where everything happens; `everyday.py` and `accidents.py` are the scenes; `programme.py` says in
which order they come and what each promises; `telling.py` puts it into words; `play.py` plays.
"""
