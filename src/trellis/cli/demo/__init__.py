"""`trellis demo`: real processes, a real database, real faults, and a check of every promise shown.

`jobs.py` is what the worker processes run, `stage.py` starts and kills them, `scenes.py` is the
play, `playbill.py` tells people what they see.
"""
