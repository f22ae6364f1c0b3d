-- Which of these marks belong to jobs here: whether it is for deduplication, the mark, the job.
-- $1 idempotency marks, $2 dedupe marks.
select false, i.mark, j.id from unnest($1::text[]) n(mark)
join trellis.idempotency i on i.mark = n.mark join trellis.job j on j.seq = i.job
union all
select true, q.dedupe, j.id from unnest($2::text[]) n(mark)
join trellis.queue q on q.dedupe = n.mark join trellis.job j on j.seq = q.job
