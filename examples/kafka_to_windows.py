"""A Kafka topic to windows, with Spark's own connector: a job that runs on.

    topic "cars" ── Spark's Kafka source ──▶ wr.windows ──▶ topic "windows", a JSON text per (query, key, window)

One stream answers all queries; with Spark's own windows each would as a rule be a stream with its own checkpoint.
Cars that were out of coverage deliver later than the lateness allows. With `updates` they change what was emitted: the
window comes once more with the next `revision`, so the topic's key is the window and the last record stands.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 \\
        --conf spark.sql.streaming.stateStore.providerClass=\\
org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider \\
        examples/kafka_to_windows.py broker:9092 s3a://bucket/checkpoints/cars
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import windrow as wr

EVENT = "ts TIMESTAMP, car STRING, speed DOUBLE, lat DOUBLE, lon DOUBLE"
PLACE = [wr.last("lat").alias("lat"), wr.last("lon").alias("lon")]
QUERIES = [  # aliases, because the names become fields of JSON
    wr.Query("speed", wr.tumbling("1 minute"), [wr.mean("speed").alias("mean"), wr.max("speed").alias("max")], "car"),
    wr.Query("slow", wr.sliding("1 hour", "5 minutes"), [wr.quantile("speed", 0.05).alias("p5")], "car", "speed > 0"),
    wr.Query("trip", wr.session("10 minutes"), [wr.count().alias("n"), *PLACE], by="car"),
    wr.Query("fleet", wr.tumbling("1 minute"), [wr.count().alias("n"), wr.distinct("car").alias("cars")]),
]


def read(raw: DataFrame) -> DataFrame:
    """Kafka's records as events; a record that cannot be read has no time, and is left out and counted."""
    return raw.select(F.from_json(F.col("value").cast("string"), EVENT).alias("event")).select("event.*")


def answer(events: DataFrame) -> DataFrame:
    return wr.windows(events, QUERIES, time="ts", lateness="30 seconds", updates="1 hour", bad_events="drop")


def write(results: DataFrame) -> DataFrame:
    """Results as Kafka's records: those of one window have one key, in whose partition they stay in order."""
    key = F.concat_ws("/", "query", "car", F.col("window_start").cast("string"))
    return results.select(key.alias("key"), F.to_json(F.struct("*")).alias("value"))


def main(spark: SparkSession, brokers: str, checkpoint: str) -> None:
    raw = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", "cars").load()
    sink = write(answer(read(raw))).writeStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    query = sink.option("topic", "windows").option("checkpointLocation", checkpoint).outputMode("update").start()
    query.awaitTermination()


if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate(), *sys.argv[1:3])
