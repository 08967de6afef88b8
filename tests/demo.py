#!/usr/bin/env python3
"""The main job on data that arrives live: killed, started again, and checked to the last row.

    python3 demo.py --millrace PATH [--seconds N] [--quiet]

A generator appends orders and changes of customers to two files, as a producer appends to topics. The pipeline of
examples/orders-enriched joins each order with the customer *as of the order's time*. Some orders are late, some name
nobody, some records cannot be read. In the middle the process is killed with SIGKILL. At the end every row is compared
with a naive model that knows all that was written: each order must be there once, with the right version.
"""

import argparse
import base64
import bisect
import decimal
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PIPELINE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "orders-enriched" / "pipeline.yaml"
ORDERS, CUSTOMERS = "orders", "shop.public.customers"
RESULT, DEAD = "orders-enriched", "orders-enriched.dead"

# What the generator does.
TICK_SECONDS = 0.02
ORDERS_PER_TICK = 6
TIERS = ["bronze", "silver", "gold", "platinum"]
NAMES = ["Ada", "Grace", "Edsger", "Barbara", "Alan", "Margaret", "Donald", "Frances", "Tony", "Radia"]
# maxOutOfOrderness in the pipeline: orders within it wait for their turn, older ones are late.
OUT_OF_ORDER_MS = 5_000
LATE_MS = 60_000
# No wait in here is longer.
DEADLINE_SECONDS = 120
# How soon after the last record the counters must tell of it.
SETTLE_SECONDS = 20


def now_ms():
    return time.time_ns() // 1_000_000


def iso(ms):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000)) + f".{ms % 1000:03}Z"


class Model:
    """All that was written, and what must come of it."""

    def __init__(self):
        self.versions = {}  # customer -> ascending [(valid from, name, tier)]
        self.orders = {}  # order -> (customer, amount, time)
        self.poison = {}  # offset in the topic -> the bytes of the value
        self.filtered = self.late = self.records = 0
        self.newest = 0

    def customer_as_of(self, customer, time_ms):
        versions = self.versions.get(customer, [])
        before = bisect.bisect_right(versions, time_ms, key=lambda version: version[0])
        return versions[before - 1][1:] if before else (None, None)

    def expected(self):
        """order -> the value that must be written for it"""
        for order, (customer, amount, time_ms) in self.orders.items():
            name, tier = self.customer_as_of(customer, time_ms)
            yield order, {"order_id": order, "amount": amount, "customer_name": name, "loyalty_tier": tier}

    def due(self):
        """How many orders the watermark has passed: these need no further order to come out."""
        watermark = self.newest - OUT_OF_ORDER_MS
        return sum(1 for _, _, time_ms in self.orders.values() if time_ms < watermark)


class Generator:
    """Appends to the topics, in a thread of its own between start() and stop()."""

    def __init__(self, topics, rng):
        self.model, self.rng, self.tick = Model(), rng, now_ms()
        self.orders = open(topics / f"{ORDERS}.jsonl", "ab")
        self.customers = open(topics / f"{CUSTOMERS}.jsonl", "ab")
        self.lock, self.done, self.thread = threading.Lock(), threading.Event(), None
        for customer, name in enumerate(NAMES):
            self.change_customer(customer, self.tick - 3_600_000, name, "bronze", "r")

    def start(self):
        self.done.clear()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def stop(self):
        self.done.set()
        self.thread.join()

    def run(self):
        while not self.done.wait(TICK_SECONDS):
            with self.lock:
                # A version must be in its file before the first order of its time or later: so ticks only ever grow.
                self.tick = max(now_ms(), self.tick + 1)
                if self.rng.random() < 0.3:
                    customer = self.rng.randrange(len(NAMES))
                    self.change_customer(customer, self.tick, NAMES[customer], self.rng.choice(TIERS), "u")
                for _ in range(ORDERS_PER_TICK):
                    self.write_order()
                self.orders.flush()

    def change_customer(self, customer, time_ms, name, tier, operation):
        after = {"customer_id": customer, "name": name, "loyalty_tier": tier, "updated_at": iso(time_ms)}
        value = {"before": None, "after": after, "op": operation, "ts_ms": time_ms}
        record = {"timestamp": time_ms, "keyJson": {"customer_id": customer}, "value": value}
        self.customers.write(json.dumps(record).encode() + b"\n")
        self.customers.flush()
        self.model.versions.setdefault(customer, []).append((time_ms, name, tier))

    def write_order(self):
        model, rng = self.model, self.rng
        kind = rng.random()
        if kind < 0.005:
            self.append({"valueBase64": base64.b64encode(b"not json").decode()}, poison=b"not json")
            return
        order = len(model.orders) + model.filtered + 1
        late = kind < 0.02
        time_ms = self.tick - (LATE_MS if late else rng.randrange(2_000))
        customer = None if kind > 0.99 else 999 if kind > 0.98 else rng.randrange(len(NAMES))
        amount = decimal.Decimal(0 if 0.97 < kind < 0.98 else rng.randrange(100, 100_000)).scaleb(-2)
        # By hand, so that the amount keeps its two digits.
        value = f'{{"order_id":{order},"customer_id":{json.dumps(customer)},"amount":{amount},'
        value += f'"order_time":"{iso(time_ms)}"}}'
        key = {} if customer is None else {"key": str(customer)}
        if amount == 0:
            model.filtered += 1
        else:
            model.orders[order] = (customer, amount, time_ms)
            model.late += time_ms < model.newest - OUT_OF_ORDER_MS
        model.newest = max(model.newest, time_ms)
        self.append(key, text=value)

    def append(self, record, text=None, poison=None):
        head = json.dumps({"timestamp": self.tick, **record})
        line = head if text is None else f'{head[:-1]}, "value":{text}}}'
        self.orders.write(line.encode() + b"\n")
        if poison is not None:
            self.model.poison[self.model.records] = poison
        self.model.records += 1


class Job:
    """The process, and what it has written so far."""

    def __init__(self, millrace, work):
        self.millrace, self.work = millrace, work
        self.result = work / "out" / f"{RESULT}.jsonl"
        self.log = work / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.metrics = f"127.0.0.1:{probe.getsockname()[1]}"
        self.process = None

    def command(self, *more):
        folders = ["--topics", self.work / "topics", "--out", self.work / "out", "--state", self.work / "state"]
        return [self.millrace, "run", "--local", "-f", PIPELINE, *folders, *more]

    def start(self, *more):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(*more), stdout=log, stderr=log)

    def follow(self):
        self.start("--follow", "--metrics", self.metrics)

    def fail(self, text):
        tail = self.log.read_text(errors="replace")[-3000:]
        sys.exit(f"demo: {text}; the end of the log:\n{tail}")

    def end(self, how, wanted):
        """Sends a signal, or none, and waits for the exit code that is wanted."""
        if how is not None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = f"none within {DEADLINE_SECONDS} s"
        if code != wanted:
            self.fail(f"exit code {code}, not {wanted}")

    def rows(self):
        """The whole lines of the result as it is now."""
        return lines(self.result)

    def count(self):
        return len(self.rows())

    def wait_for(self, rows, what):
        """Waits until the result holds so many rows."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.count() < rows:
            if self.process.poll() is not None:
                self.fail(f"the process ended while {what}")
            if time.monotonic() > deadline:
                self.fail(f"{self.count()} of {rows} rows after {DEADLINE_SECONDS} s while {what}")
            time.sleep(0.05)

    def scrape(self):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            return answer.read().decode()


def lines(path):
    """The whole lines of a file; none if it does not exist."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    return text[: text.rfind(b"\n") + 1].splitlines()


class Narrator:
    def __init__(self, quiet):
        self.quiet = quiet

    def part(self, title, *text):
        print(f"\n{'' if self.quiet else chr(10)}== {title}", flush=True)
        if not self.quiet:
            self.say(*text)

    def say(self, *text):
        for line in text:
            print(f"   {line}", flush=True)

    def detail(self, *text):
        if not self.quiet:
            self.say(*text)


def show_live(narrator, job, generator, seconds):
    """Lets it run for a while and shows each second how far it is, with the newest row."""
    begin, shown = time.monotonic(), job.count()
    while (passed := time.monotonic() - begin) < seconds:
        if job.process.poll() is not None:
            job.fail("the process ended by itself")
        time.sleep(min(1.0, seconds - passed))
        rows = job.rows()
        with generator.lock:
            written, due = len(generator.model.orders), generator.model.due()
        fresh = f"{len(rows) - shown:>5} new" if len(rows) >= shown else "  cut"
        row = json.loads(rows[-1])["value"] if rows else {}
        customer = f"{row.get('customer_name') or 'nobody known'} ({row.get('loyalty_tier') or '-'})" if row else ""
        newest = f"newest: order {row['order_id']}, {row['amount']:.2f}, {customer}" if row else "none yet"
        behind = max(due - len(rows), 0)
        progress = f"{written:>6} orders written, {len(rows):>6} rows out ({fresh}), {behind:>4} behind"
        narrator.detail(f"{progress} | {newest}")
        shown = len(rows)


class Samples:
    """What /metrics said: (labels, value) of each series, by name."""

    def __init__(self, text):
        self.lines = [line for line in text.splitlines() if not line.startswith("#")]
        self.by_name = {}
        for line in self.lines:
            name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()
            series = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
            self.by_name.setdefault(name, []).append((series, float(value)))

    def sum(self, name, **labels):
        series = self.by_name.get(name, [])
        return sum(value for found, value in series if labels.items() <= found.items())

    def steps(self):
        """Each (stage, partition, step) once."""
        return [series for series, _ in self.by_name.get("millrace_rows_in_total", [])]

    def unbalanced(self):
        """The steps for which rows in are not rows out, dropped or waiting."""
        for step in self.steps():
            parts = ("millrace_rows_out_total", "millrace_rows_dropped_total", "millrace_rows_waiting")
            if self.sum("millrace_rows_in_total", **step) != sum(self.sum(part, **step) for part in parts):
                yield " ".join(step.values())


def show_metrics(narrator, job):
    shown = ("millrace_source_lag_", "millrace_watermark_", "millrace_rows_waiting", "millrace_rows_dropped_total")
    found = [line for line in Samples(job.scrape()).lines if line.startswith(shown) and not line.endswith(" 0")]
    narrator.detail(f"curl http://{job.metrics}/metrics", *[f"    {line}" for line in found])


def check_totals(narrator, job, model):
    """Once all that was written is read and committed, the counters must agree with the model, although the process
    that reports them did only a part of the work. Returns what does not agree in the end."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        samples = Samples(job.scrape())
        counts = [
            ("read", samples.sum("millrace_rows_in_total", step="source orders"), model.records),
            ("dead letters", samples.sum("millrace_rows_dropped_total", reason="dead_lettered"), len(model.poison)),
            ("filtered", samples.sum("millrace_rows_dropped_total", reason="filtered"), model.filtered),
            ("late and joined", samples.sum("millrace_rows_joined_late_total"), model.late),
        ]
        wrong = [f"{name}: the counters say {got:g}, it was {wanted}" for name, got, wanted in counts if got != wanted]
        wrong += [f"{step} is not balanced" for step in samples.unbalanced()]
        if not wrong or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    told = ", ".join(f"{got:g} {name}" for name, got, _ in counts)
    narrator.say(f"the counters, which outlive the kill: {told}; for every step: in = out + dropped + waiting")
    return wrong


def check(job, model):
    """Mistakes in the result, as text."""
    mistakes, seen = [], {}
    for line in job.rows():
        record = json.loads(line, parse_float=decimal.Decimal)
        order = record["value"]["order_id"]
        if order in seen:
            mistakes.append(f"order {order} is there twice")
        seen[order] = record["value"]
    for order, wanted in model.expected():
        if (got := seen.pop(order, None)) != wanted:
            mistakes.append(f"order {order}: got {got}, wanted {wanted}")
    mistakes += [f"order {order} was never written" for order in seen]
    dead = {}
    for line in lines(job.work / "out" / f"{DEAD}.jsonl"):
        record = json.loads(line)
        offset = int(record["headers"]["millrace-offset"])
        if offset in dead:
            mistakes.append(f"the record at offset {offset} is in the dead letters twice")
        dead[offset] = base64.b64decode(record.get("valueBase64", ""))
    if dead != model.poison:
        mistakes.append(f"dead letters at {sorted(dead)}, wanted {sorted(model.poison)}")
    return mistakes


def show_dead_letter(narrator, job):
    dead = lines(job.work / "out" / f"{DEAD}.jsonl")
    if dead:
        narrator.detail("A dead letter keeps its bytes and says where it came from and why:")
        for name, value in json.loads(dead[0])["headers"].items():
            narrator.detail(f"    {name}: {value}")


def story(narrator, job, generator, seconds):
    """Runs the job; returns the mistakes in its result."""
    model = generator.model
    narrator.part(
        "Orders meet customers, live",
        f"Orders are appended to {job.work}/topics/{ORDERS}.jsonl, changes of customers to {CUSTOMERS}.jsonl.",
        "The pipeline (examples/orders-enriched/pipeline.yaml) gives each order the customer as of the order's time.",
        "An order waits until 5 s of newer orders have come: then nothing older can change the answer.",
        " ".join(str(word) for word in job.command("--follow", "--metrics", job.metrics)),
        "",
    )
    generator.start()
    job.follow()
    job.wait_for(1, "waiting for the first row")
    show_live(narrator, job, generator, seconds)
    show_metrics(narrator, job)

    narrator.part("kill -9, in the middle of it", "The process gets no chance to say goodbye. Orders go on coming.")
    job.end(signal.SIGKILL, -signal.SIGKILL)
    before = job.count()
    narrator.say(f"killed; {before} rows are in the file, and some of them may be of an epoch that was never committed")

    narrator.part(
        "Started again, with the same state",
        "It cuts its files back to the last committed epoch and goes on from there.",
        "",
    )
    job.follow()
    job.wait_for(before + 1, "catching up")
    show_live(narrator, job, generator, seconds)

    narrator.part("The orders stop", "What the watermark has passed comes out; the last 5 s wait for newer orders.")
    generator.stop()
    job.wait_for(model.due(), "draining")
    narrator.say(f"{len(model.orders)} orders written, {job.count()} rows out")
    mistakes = check_totals(narrator, job, model)
    narrator.detail("SIGTERM: it commits its last epoch and ends with exit code 0.")
    job.end(signal.SIGTERM, 0)
    narrator.detail("Once more without --follow: the input now has an end, so nothing has to wait any more.")
    job.start()
    job.end(None, 0)
    narrator.say(f"{len(model.orders)} orders written, {job.count()} rows out")
    show_dead_letter(narrator, job)

    narrator.part("Was anything lost, doubled or wrong?", "A naive model that knows all that was written says:")
    return mistakes + check(job, model)


def main():
    parser = argparse.ArgumentParser(description="the main job on live data, with a kill -9 in the middle")
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--seconds", type=float, default=8, help="how long each of the two live parts lasts")
    parser.add_argument("--quiet", action="store_true", help="only what happens, without rows and explanations")
    arguments = parser.parse_args()

    work = pathlib.Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    (work / "topics").mkdir()
    job = Job(arguments.millrace, work)
    generator = Generator(work / "topics", random.Random())
    try:
        mistakes = story(Narrator(arguments.quiet), job, generator, arguments.seconds)
    finally:
        generator.done.set()
        if job.process is not None and job.process.poll() is None:
            job.process.kill()
            job.process.wait()
    if mistakes:
        print(f"   {len(mistakes)} mistakes (everything is kept in {work}):", *mistakes[:10], sep="\n     ")
        sys.exit(1)
    model = generator.model
    print(
        f"   No. {len(model.orders)} orders are there, each once, each with the customer of its own time.\n"
        f"   {model.late} of them came late and were joined all the same; {model.filtered} of no value were filtered;\n"
        f"   {len(model.poison)} records that cannot be read are in the dead letters, each once."
    )
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
