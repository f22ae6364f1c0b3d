"""The operator's view of a place where jobs are kept: find, explain, steer.

May import control, insight, contract, engines and core. Start at `operator.py`.
"""
