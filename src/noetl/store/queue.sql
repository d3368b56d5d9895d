-- Statements about timers, for every store.

-- due_timers --
SELECT execution_id, timer_id, fires_at
  FROM noetl.timer
 WHERE fires_at <= :now
 ORDER BY fires_at, execution_id, timer_id
 LIMIT :limit

-- timers_of --
SELECT timer_id, fires_at FROM noetl.timer WHERE execution_id = :execution_id

-- next_timer --
SELECT min(fires_at) AS fires_at FROM noetl.timer
