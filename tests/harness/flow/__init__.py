"""The flow campaign: schedules, batches, limits, hooks and workflows while everything is killed.

`jobs.py` is the service, `producer.py` creates its jobs, `campaign.py` runs and kills. `facts.py`
is what is left; `rules.py`, with `batches.py` and `limits.py`, judges it. The short form is
`test_flow.py`; `make faults` runs a longer one in turn with the campaign of workers.
"""
