-- What follows the end of a job.

-- name: followup_known
-- Which of these jobs are stored already.
select j.id from json_each(?) n cross join trellis_job j on j.id = n.value
