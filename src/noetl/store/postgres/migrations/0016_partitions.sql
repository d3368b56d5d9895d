-- Log and results stand in partitions by execution id, which is ordered by time: one for each day,
-- so that a day that is over is dropped whole. What was there before is one partition, and ids that
-- are of no day that has one are in another (`_other`).
CREATE TABLE noetl.partition (
    name  text COLLATE "C" NOT NULL PRIMARY KEY,
    first text COLLATE "C" NOT NULL,
    last  text COLLATE "C" NOT NULL CHECK (last > first)
);

-- The first id of a day; days are counted from 1970.
CREATE FUNCTION noetl.first_id(day bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT (((day * 86400000 - 1704067200000) << 22)::text)
$$;

ALTER TABLE noetl.log RENAME TO log_before;
ALTER TABLE noetl.result RENAME TO result_before;
ALTER INDEX noetl.log_pkey RENAME TO log_before_pkey;
ALTER INDEX noetl.result_pkey RENAME TO result_before_pkey;
CREATE TABLE noetl.log (LIKE noetl.log_before INCLUDING ALL) PARTITION BY RANGE (execution_id);
CREATE TABLE noetl.result (LIKE noetl.result_before INCLUDING ALL) PARTITION BY RANGE (execution_id);
CREATE TABLE noetl.log_other PARTITION OF noetl.log DEFAULT;
CREATE TABLE noetl.result_other PARTITION OF noetl.result DEFAULT;

DO $$
DECLARE
    today bigint := floor(extract(epoch FROM now()) / 86400);
    tomorrow text COLLATE "C" := noetl.first_id(today + 1);
BEGIN
    INSERT INTO noetl.log_other SELECT * FROM noetl.log_before WHERE execution_id >= tomorrow;
    DELETE FROM noetl.log_before WHERE execution_id >= tomorrow;
    INSERT INTO noetl.result_other SELECT * FROM noetl.result_before WHERE execution_id >= tomorrow;
    DELETE FROM noetl.result_before WHERE execution_id >= tomorrow;
    EXECUTE format('ALTER TABLE noetl.log ATTACH PARTITION noetl.log_before'
                   ' FOR VALUES FROM (MINVALUE) TO (%L)', tomorrow);
    EXECUTE format('ALTER TABLE noetl.result ATTACH PARTITION noetl.result_before'
                   ' FOR VALUES FROM (MINVALUE) TO (%L)', tomorrow);
    INSERT INTO noetl.partition VALUES ('before', '', tomorrow);
END $$;

CREATE OR REPLACE VIEW noetl.event AS
SELECT log.execution_id,
       log.seq - json_array_length(parsed.events) + event.number AS seq,
       event.body ->> 'type' AS type,
       (event.body ->> 'at')::double precision AS at,
       coalesce(event.body ->> 'step', '') AS step,
       coalesce(event.body ->> 'step_run_id', '') AS step_run_id,
       event.body
  FROM noetl.log AS log
 CROSS JOIN LATERAL (SELECT convert_from(log.events, 'UTF8')::json AS events) AS parsed
 CROSS JOIN LATERAL json_array_elements(parsed.events)
       WITH ORDINALITY AS event (body, number);

-- Makes the partitions of so many days, where they are missing. A day of which there are rows
-- already keeps them where they are.
CREATE FUNCTION noetl.add_partitions(first_day bigint, days integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    made integer := 0;
    begins text COLLATE "C";
    ends text COLLATE "C";
    called text;
BEGIN
    FOR day IN first_day .. first_day + days - 1 LOOP
        begins := noetl.first_id(day);
        ends := noetl.first_id(day + 1);
        CONTINUE WHEN EXISTS (SELECT FROM noetl.partition WHERE first < ends AND last > begins);
        PERFORM pg_advisory_xact_lock(474213870956);
        CONTINUE WHEN EXISTS (SELECT FROM noetl.partition WHERE first < ends AND last > begins)
            OR EXISTS (SELECT FROM noetl.log_other
                        WHERE execution_id >= begins AND execution_id < ends)
            OR EXISTS (SELECT FROM noetl.result_other
                        WHERE execution_id >= begins AND execution_id < ends);
        called := to_char(to_timestamp(day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD');
        EXECUTE format('CREATE TABLE noetl.%I PARTITION OF noetl.log FOR VALUES FROM (%L) TO (%L)',
                       'log_' || called, begins, ends);
        EXECUTE format('CREATE TABLE noetl.%I PARTITION OF noetl.result'
                       ' FOR VALUES FROM (%L) TO (%L)', 'result_' || called, begins, ends);
        INSERT INTO noetl.partition VALUES (called, begins, ends);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

-- Drops a partition of which no execution is left; whether it did.
CREATE FUNCTION noetl.drop_partition(called text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    span noetl.partition;
BEGIN
    SELECT * INTO span FROM noetl.partition WHERE name = called FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    LOCK TABLE noetl.log, noetl.result IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM noetl.execution
                WHERE execution_id >= span.first AND execution_id < span.last) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE noetl.%I, noetl.%I', 'log_' || called, 'result_' || called);
    DELETE FROM noetl.partition WHERE name = called;
    RETURN true;
END $$;
