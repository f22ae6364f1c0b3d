-- A waiting job is looked at when its deadline comes: from then on it is no longer claimable.
select job from trellis_queue
where lane = ? and park = 'ready' and (look_at is null or look_at > ?)
order by job
