-- When autovacuum comes. By default it waits until a fifth of a table has changed: too late for small
-- tables whose rows change all the time, and for large ones a day's work at once. Statistics are
-- kept fresh for the queries of people. These orders hold up neither readers nor writers.

alter table trellis.session set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000);
alter table trellis.key_slot set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000);
alter table trellis.lock set (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
alter table trellis.note set (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

-- Filled at one end, emptied by retention at the other.
alter table trellis.job set (
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02);
alter table trellis.outcome set (
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02);
alter table trellis.event set (
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02);
alter table trellis.item set (
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02);
alter table trellis.log set (
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02);
