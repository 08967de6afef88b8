#!/usr/bin/env python3
"""Writes the year as topics of the embedded log: flights, weather, planes and airlines as <topic>.jsonl.

    python3 prepare.py [--topics DIR]

Nothing is dropped, corrected or rounded: numbers keep the text that they have in the package, `NA` becomes null.

A flight's record is written when the flight left (a cancelled one when it should have left), so the records come in
the order of departure while their event time is the *scheduled* departure: a flight that left 3 hours late comes 3
hours out of order. Two columns are added: `flight_id`, the line number in the package, and `scheduled_departure`, which
is `time_hour` plus `minute` in UTC. A weather record is written at the hour that it is about.
"""

import argparse
import csv
import datetime
import io
import json
import pathlib
import re
import sys
import zipfile

import data

# Partitions of each topic. Different numbers on purpose: the joins have to bring the rows together.
PARTITIONS = {"flights": 4, "weather": 2, "planes": 2, "airlines": 1}
# Bump it when this script writes something else: files that an older version wrote are then made anew.
VERSION = "1"

NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
TEXT_COLUMNS = {
    "carrier", "tailnum", "origin", "dest", "time_hour", "name", "type", "manufacturer", "model", "engine",
}


def cell(column, text):
    """The JSON text of a CSV cell."""
    if text == "NA":
        return "null"
    if column in TEXT_COLUMNS:
        return json.dumps(text)
    if NUMBER.fullmatch(text):
        return text
    sys.exit(f"prepare: column {column} holds {text!r}, which is no JSON number")


def instant_ms(text):
    """Milliseconds of a time such as 2013-01-01T10:00:00Z."""
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) * 1000


def iso(ms):
    time = datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def murmur2(key):
    """The hash by which Kafka's Java client chooses the partition of a keyed record."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def line(topic, timestamp, key, fields):
    partition = (murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS[topic]
    value = ",".join(f"{json.dumps(name)}:{text}" for name, text in fields)
    return f'{{"partition":{partition},"timestamp":{timestamp},"key":{json.dumps(key)},"value":{{{value}}}}}\n'


def flights(rows):
    """(time of departure, line) of each flight."""
    for number, row in enumerate(rows, start=1):
        scheduled = instant_ms(row["time_hour"]) + int(row["minute"]) * 60_000
        delay = 0 if row["dep_delay"] == "NA" else max(int(row["dep_delay"]), 0)
        left = scheduled + delay * 60_000
        added = [("flight_id", str(number)), ("scheduled_departure", json.dumps(iso(scheduled)))]
        fields = added + [(name, cell(name, text)) for name, text in row.items()]
        yield left, line("flights", left, str(number), fields)


def table(topic, rows, key, timestamp):
    for row in rows:
        fields = [(name, cell(name, text)) for name, text in row.items()]
        yield line(topic, timestamp(row), row[key], fields)


def write(topics, topic, lines):
    with open(topics / f"{topic}.jsonl", "w", encoding="utf-8") as out:
        count = 0
        for text in lines:
            out.write(text)
            count += 1
    print(f"prepare: {count:>7} records in {topic}.jsonl", file=sys.stderr)


def rows_of(folder, name):
    if name == "flights":
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
            return list(csv.DictReader(io.StringIO(archive.read("flights.csv").decode())))
    with open(folder / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def prepare(topics):
    """Writes the topics, unless this version of the script has done so before."""
    stamp = topics / "prepared"
    if stamp.exists() and stamp.read_text() == VERSION:
        return
    folder = data.folder()
    topics.mkdir(parents=True, exist_ok=True)
    by_departure = sorted(flights(rows_of(folder, "flights")), key=lambda pair: pair[0])
    write(topics, "flights", (text for _, text in by_departure))
    weather = sorted(rows_of(folder, "weather"), key=lambda row: row["time_hour"])
    write(topics, "weather", table("weather", weather, "origin", lambda row: instant_ms(row["time_hour"])))
    start = instant_ms("2013-01-01T00:00:00Z")
    write(topics, "planes", table("planes", rows_of(folder, "planes"), "tailnum", lambda row: start))
    write(topics, "airlines", table("airlines", rows_of(folder, "airlines"), "carrier", lambda row: start))
    stamp.write_text(VERSION)


def main():
    parser = argparse.ArgumentParser(description="writes the flights of 2013 as topics of the embedded log")
    parser.add_argument("--topics", type=pathlib.Path, default=data.cache() / "flights" / "topics")
    arguments = parser.parse_args()
    prepare(arguments.topics)
    print(arguments.topics)


if __name__ == "__main__":
    main()
