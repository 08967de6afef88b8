#!/usr/bin/env python3
"""The independent answer: pandas' merge_asof over the package's own CSV files, against what the pipeline wrote.

    python3 oracle.py --out DIR [DIR...]

Reads the package, not the prepared topics, so that a mistake in prepare.py shows too. Every flight must be in
flights-enriched.jsonl of each DIR exactly once, with the timestamp, the key and every field that pandas says, and
nothing may be in the dead letters. Exit code 0: equal record for record; 1: not.
"""

import argparse
import json
import os
import pathlib
import sys

import data

WEATHER = ["temp", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
PLANES = ["manufacturer", "model", "seats"]
FLIGHTS = ["carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance"]
WHOLE = {
    "year", "month", "day", "hour", "minute", "dep_time", "sched_dep_time", "arr_time", "sched_arr_time", "flight",
    "dep_delay", "arr_delay", "air_time", "distance", "wind_dir", "seats", "engines", "speed",
}
FRACTIONS = {"temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib"}
# What maxOutOfOrderness in pipeline.yaml allows.
OUT_OF_ORDER = "1h"
MISTAKES_SHOWN = 10


def in_venv():
    """Starts this script again with the interpreter that has pandas."""
    interpreter = data.python()
    if pathlib.Path(sys.prefix).resolve() != interpreter.parent.parent.resolve():
        os.execv(interpreter, [str(interpreter), __file__, *sys.argv[1:]])


def read(pandas, folder, name):
    frame = pandas.read_csv(folder / name, dtype=str, na_values=["NA"], keep_default_na=False)
    for column in frame.columns.intersection([*WHOLE]):
        frame[column] = pandas.to_numeric(frame[column]).astype("Int64")
    # Python's own float() rounds correctly; pandas' default parser is off by one unit in the last place now and then.
    for column in frame.columns.intersection([*FRACTIONS]):
        frame[column] = frame[column].map(float, na_action="ignore").astype("float64")
    return frame


def expected(pandas):
    """All 336,776 rows as pandas has them, in the order of the scheduled departure."""
    folder = data.folder()
    flights = read(pandas, folder, "flights.csv.zip")
    flights["flight_id"] = range(1, len(flights) + 1)
    hour = pandas.to_datetime(flights["time_hour"], utc=True)
    flights["scheduled_departure"] = hour + pandas.to_timedelta(flights["minute"].astype("int64"), unit="min")
    delay = flights["dep_delay"].fillna(0).clip(lower=0).astype("int64")
    flights["left"] = flights["scheduled_departure"] + pandas.to_timedelta(delay, unit="min")
    flights = flights[["flight_id", "scheduled_departure", "left", *FLIGHTS]]

    weather = read(pandas, folder, "weather.csv")
    weather["observed_at"] = pandas.to_datetime(weather["time_hour"], utc=True)
    weather = weather[["origin", "observed_at", *WEATHER]].sort_values("observed_at", kind="stable")

    planes = read(pandas, folder, "planes.csv").rename(columns={"year": "plane_year"})
    airlines = read(pandas, folder, "airlines.csv").rename(columns={"name": "airline"})

    rows = pandas.merge_asof(
        flights.sort_values("scheduled_departure", kind="stable"),
        weather,
        left_on="scheduled_departure",
        right_on="observed_at",
        by="origin",
        direction="backward",
    )
    # A flight without a tail number has no plane; pandas would pair null with null.
    rows = rows.merge(planes[["tailnum", "plane_year", *PLANES]].dropna(subset=["tailnum"]), on="tailnum", how="left")
    return rows.merge(airlines, on="carrier", how="left")


def records(pandas, rows):
    """(flight id, timestamp in ms, value) of each row."""
    columns = ["flight_id", "scheduled_departure", *FLIGHTS, "observed_at", *WEATHER, "plane_year", *PLANES, "airline"]
    lists = []
    for column in columns:
        values = rows[column]
        if column in ("scheduled_departure", "observed_at"):
            values = values.dt.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        values = values.astype(object)
        lists.append(values.where(values.notna(), None).tolist())
    seconds = (rows["left"] - pandas.Timestamp(0, tz="UTC")) // pandas.Timedelta("1s")
    for left, *cells in zip(seconds.tolist(), *lists):
        yield cells[0], left * 1000, dict(zip(columns, cells))


def late_flights(pandas, rows):
    """How many flights come when the watermark has passed them, if they were in one partition."""
    arrived = rows.sort_values(["left", "flight_id"], kind="stable")["scheduled_departure"]
    watermark = arrived.cummax().shift() - pandas.Timedelta(OUT_OF_ORDER)
    return int((arrived < watermark).sum())


def compare(out, wanted):
    """How many flights there are, and mistakes as text, of which at most a few are kept."""
    seen, mistakes = set(), []
    path = out / "flights-enriched.jsonl"
    if not path.exists():
        return 0, [f"{path} does not exist"]
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            record = json.loads(text)
            key = record.get("key")
            if key in seen:
                mistakes.append(f"line {number}: flight {key} came before")
            seen.add(key)
            want = wanted.get(key)
            got = (record.get("timestamp"), record["value"])
            if got != want:
                mistakes.append(f"line {number}: {got}\n    wanted {want}")
            if len(mistakes) > MISTAKES_SHOWN:
                return len(seen), mistakes
    missing = [key for key in wanted if key not in seen]
    mistakes += [f"flight {key} is missing" for key in missing[:MISTAKES_SHOWN]]
    if len(missing) > MISTAKES_SHOWN:
        mistakes.append(f"and {len(missing) - MISTAKES_SHOWN} more are missing")
    dead = out / "flights.dead.jsonl"
    if dead.exists() and dead.stat().st_size > 0:
        mistakes.append(f"{dead} is not empty")
    return len(seen), mistakes


def main():
    in_venv()
    import pandas

    parser = argparse.ArgumentParser(description="compares what the pipeline wrote with pandas' merge_asof")
    parser.add_argument("--out", type=pathlib.Path, required=True, nargs="+", help="folders that the pipeline wrote to")
    arguments = parser.parse_args()
    rows = expected(pandas)
    wanted = {str(number): (timestamp, value) for number, timestamp, value in records(pandas, rows)}
    late, unknown = late_flights(pandas, rows), int(rows["manufacturer"].isna().sum())
    failed = False
    for out in arguments.out:
        count, mistakes = compare(out, wanted)
        for mistake in mistakes:
            print(f"oracle: {out}: {mistake}")
        failed |= bool(mistakes)
        if not mistakes:
            print(
                f"oracle: {out}: {count} flights, each once and equal to pandas in every field "
                f"(about {late} came late, {unknown} have an unknown plane)"
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
