-- A year of departures from New York's three airports. Every statement that Spark's own SQL can read is run there too.

-- name: hourly_delay
SELECT carrier, count(*) AS flights, avg(dep_delay) AS delay
FROM flights GROUP BY carrier, window(departure, '1 hour');

-- name: sliding_day
SELECT origin, count(*) AS flights, avg(dep_delay) AS delay, stddev(dep_delay) AS spread
FROM flights GROUP BY origin, window(departure, '1 day', '1 hour');

-- name: sliding_week
SELECT count(*) AS flights, avg(dep_delay) AS delay
FROM flights GROUP BY window(departure, '7 days', '1 hour');

-- name: late_share
SELECT origin, count(*) FILTER (WHERE dep_delay > 15) / count(dep_delay) AS late_share, count_if(cancelled) AS cancelled
FROM flights GROUP BY origin, window(departure, '1 day');

-- name: delay_quantiles
SELECT carrier, percentile(dep_delay, 0.05) AS p05, median(dep_delay) AS p50, percentile(dep_delay, 0.95) AS p95
FROM flights GROUP BY carrier, window(departure, '7 days');

-- name: extremes_of_the_day
SELECT max(dep_delay) AS worst, min(dep_delay) AS earliest
FROM flights WHERE NOT cancelled GROUP BY window(departure, '1 day');

-- name: busy_routes
SELECT origin, dest, count(*) AS flights, avg(air_time) AS air_time, sum(distance) AS miles
FROM flights GROUP BY origin, dest, window(departure, '28 days') HAVING count(*) > 500;

-- name: at_work
SELECT tailnum, count(*) AS flights, sum(distance) AS miles
FROM flights WHERE tailnum IS NOT NULL GROUP BY tailnum, session_window(departure, '12 hours') HAVING count(*) > 5;

-- name: aeroplanes
SELECT approx_distinct(tailnum) AS aeroplanes
FROM flights GROUP BY window(departure, '7 days');

-- Windows that Spark's own SQL does not have.

-- name: day_so_far
SELECT origin, count(*) AS flights, sum(distance) AS miles
FROM flights GROUP BY origin, cumulate(departure, '1 day', '1 hour');

-- name: every_10_000
SELECT avg(dep_delay) AS delay, stddev(dep_delay) AS spread, max(dep_delay) AS worst
FROM flights GROUP BY count_window(10000);

-- name: last_50_each_morning
SELECT origin, avg(dep_delay) AS delay, count_if(cancelled) AS cancelled
FROM flights GROUP BY origin, latest(50, every => '1 day');

-- name: bad_spell
SELECT origin, count(*) AS flights, avg(dep_delay) AS delay
FROM flights GROUP BY origin, frames(when => dep_delay > 60) HAVING count(*) >= 5;

-- name: until_a_cancellation
SELECT origin, count(*) AS flights
FROM flights GROUP BY origin, punctuated(end => cancelled) HAVING count(*) > 500;
