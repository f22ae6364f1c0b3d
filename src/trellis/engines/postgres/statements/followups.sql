-- What follows the end of a job.

-- name: followup_known
-- Which of these jobs are stored already.
select j.id from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id
