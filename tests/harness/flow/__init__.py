"""The flow campaign: schedules, batches, limits, hooks and workflows while everything is killed.

`jobs.py` is the service, `producer.py` creates its jobs, `campaign.py` runs and kills, `rules.py`
judges what is left. The short form is `test_flow.py`; `make faults ARGS="--flow"` runs longer.
"""
