-- The tables the examples read and write, with the rows they expect to find.
CREATE TABLE users (
    id integer PRIMARY KEY, user_id integer NOT NULL, email text NOT NULL
);
INSERT INTO users (id, user_id, email) VALUES (1, 101, 'ada@example.com');

CREATE TABLE orders (id integer PRIMARY KEY, total numeric NOT NULL);
INSERT INTO orders (id, total) VALUES (7, 1500);

CREATE TABLE audit_log (id serial PRIMARY KEY, order_id integer NOT NULL);
CREATE TABLE events (id serial PRIMARY KEY, value integer NOT NULL);
CREATE TABLE raw_events (id serial PRIMARY KEY, page jsonb NOT NULL, iter integer NOT NULL);
CREATE TABLE weather (id serial PRIMARY KEY, city text NOT NULL);
CREATE TABLE pagination_test_results (id serial PRIMARY KEY, value integer NOT NULL);
CREATE TABLE qpu_results (job_id text PRIMARY KEY, counts jsonb NOT NULL);
CREATE TABLE results_ok (
    id serial PRIMARY KEY, path text NOT NULL, page integer NOT NULL, items jsonb NOT NULL
);
CREATE TABLE results_not_found (id serial PRIMARY KEY, path text NOT NULL, page integer NOT NULL);
