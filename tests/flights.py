#!/usr/bin/env python3
"""The whole year of examples/flights through `millrace run --local`, against the oracle.

    python3 flights.py --millrace PATH [--kills N] [--seed N]

Twice: once straight, and once with kill -9 at random instants and a restart after each. Both must equal pandas record
for record: the answer does not depend on what happened to the job.
"""

import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "flights"
sys.path.insert(0, str(EXAMPLE))

import data  # noqa: E402
import prepare  # noqa: E402

RESULT = "flights-enriched.jsonl"
# A run of the whole year takes seconds; one that takes this long hangs.
RUN_SECONDS_MAX = 600
# A start with state takes about this long until it goes on.
RESTORE_SECONDS = 1.5
# A kill waits for its instant at this interval.
LOOK_SECONDS = 0.002


def say(text):
    print(f"flights: {text}", flush=True)


def command(millrace, topics, folder):
    files = ["--topics", topics, "--out", folder / "out", "--state", folder / "state"]
    return [millrace, "run", "--local", "-f", EXAMPLE / "pipeline.yaml", *files]


def size(path):
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def lines(path):
    with open(path, "rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def start(millrace, topics, folder):
    folder.mkdir(parents=True, exist_ok=True)
    log = open(folder / "log", "ab")
    return subprocess.Popen(command(millrace, topics, folder), stdout=log, stderr=log)


def finish(process, folder):
    """Waits for the end of a run, which must be a good one."""
    try:
        code = process.wait(RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = f"none after {RUN_SECONDS_MAX} s"
    if code != 0:
        tail = (folder / "log").read_text(errors="replace")[-4000:]
        sys.exit(f"flights: exit code {code}; the end of its log:\n{tail}")


def straight(millrace, topics, folder):
    begin = time.monotonic()
    finish(start(millrace, topics, folder), folder)
    seconds = time.monotonic() - begin
    count = lines(folder / "out" / RESULT)
    say(f"straight: {count} flights in {seconds:.1f} s, {count / seconds:,.0f} a second")


def kill_after(process, condition):
    """Kills the process once the condition holds; False if it ended by itself before."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            sys.exit("flights: a run hangs")
        time.sleep(LOOK_SECONDS)
    process.kill()
    process.wait()
    return True


def with_kills(millrace, topics, folder, kills, rng, bytes_in_all):
    """Every other kill comes soon after a start, while state is restored; the others once a random share of what was
    still missing has been written."""
    result = folder / "out" / RESULT
    begin, done = time.monotonic(), 0
    for number in range(kills):
        process = start(millrace, topics, folder)
        before = size(result) / bytes_in_all
        if number % 2 == 0:
            share = before + (1 - before) * rng.uniform(0.0, 0.6)
            killed = kill_after(process, lambda: size(result) >= share * bytes_in_all)
        else:
            instant = time.monotonic() + rng.uniform(0, RESTORE_SECONDS)
            killed = kill_after(process, lambda: time.monotonic() >= instant)
        if not killed:
            finish(process, folder)
            break
        done += 1
        say(f"killed: the file held {before:.1%} at the start and {size(result) / bytes_in_all:.1%} at the end")
    finish(start(millrace, topics, folder), folder)
    say(f"with {done} kills: {lines(result)} flights in {time.monotonic() - begin:.1f} s")
    if done == 0:
        sys.exit("flights: nothing was killed, so nothing was shown")


def main():
    parser = argparse.ArgumentParser(description="a year of flights, with and without kills, against pandas")
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()

    topics = data.cache() / "flights" / "topics"
    prepare.prepare(topics)
    work = pathlib.Path(tempfile.mkdtemp(prefix="flights-", dir=data.cache()))
    try:
        straight(arguments.millrace, topics, work / "straight")
        bytes_in_all = size(work / "straight" / "out" / RESULT)
        say(f"seed of the kills: {arguments.seed}")
        rng = random.Random(arguments.seed)
        with_kills(arguments.millrace, topics, work / "killed", arguments.kills, rng, bytes_in_all)
        outs = [work / "straight" / "out", work / "killed" / "out"]
        subprocess.run([sys.executable, EXAMPLE / "oracle.py", "--out", *outs], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
