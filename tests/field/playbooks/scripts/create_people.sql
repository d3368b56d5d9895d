-- A function body holds semicolons of its own.
DROP TABLE IF EXISTS people;
CREATE TABLE people (name text PRIMARY KEY, born int);
CREATE OR REPLACE FUNCTION born_before(year int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT count(*) FROM people WHERE born < year);
END;
$$;
