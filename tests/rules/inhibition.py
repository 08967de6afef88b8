"""Sends Alertmanager the alerts of our rules, and looks which it keeps quiet and which it groups.

    python3 tests/rules/inhibition.py http://127.0.0.1:9093
"""

import json
import sys
import time
import urllib.request

DEADLINE_SECONDS = 20


def request(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=5) as answer:
        return json.loads(answer.read() or "null")


def alerts(path, **instead):
    """The labels of each alert that a file of rules can fire."""
    with open(path) as file:
        groups = json.load(file)["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return [{**rule["labels"], **instead, "alertname": rule["alert"]} for rule in rules]


def name(labels):
    parts = [labels["alertname"], labels.get("sloth_service"), labels.get("sloth_slo"), labels.get("tier")]
    return " ".join(part for part in parts if part)


def quiet(url):
    found = request(f"{url}/api/v2/alerts")
    return {name(alert["labels"]) for alert in found if alert["status"]["state"] == "suppressed"}


def expect(url, what, expected):
    """Alertmanager takes what it is sent a moment later."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := quiet(url)) != expected:
        if time.monotonic() > deadline:
            sys.exit(f"{what}: quiet but should not be: {found - expected}; should be but is not: {expected - found}")


def main(url):
    burning = alerts("tests/rules/tested.json")
    # Of another pipeline no page fires, and of a third one only that about dead letters.
    other = alerts("tests/rules/tested.json", sloth_service="shop/other")
    other = [labels for labels in other if labels["severity"] == "ticket"]
    third = alerts("tests/rules/tested.json", sloth_service="shop/third")
    third = [labels for labels in third if labels.get("sloth_slo", "correct") == "correct"]
    operator = alerts("charts/millrace/files/operator-rules.json")
    absent = [labels for labels in operator if labels["alertname"] == "MillraceOperatorAbsent"]
    assert len(absent) == 1 and len(burning) == 13, "the rules have changed: so does this test"

    request(f"{url}/api/v2/alerts", [{"labels": labels} for labels in burning + other + third])
    pipeline, third_pipeline = "shop/orders", "shop/third"
    expected = {f"MillraceErrorBudgetBurn {pipeline} {slo} {tier}" for slo in ("fresh", "correct") for tier in ("1d", "3d")}
    expected |= {f"MillraceLagHigh {pipeline}", f"MillraceDeadLetters {pipeline}", f"MillraceDeadLetters {third_pipeline}"}
    expected |= {f"MillraceErrorBudgetBurn {third_pipeline} correct {tier}" for tier in ("1d", "3d")}
    expect(url, "with an operator", expected)

    request(f"{url}/api/v2/alerts", [{"labels": labels} for labels in absent])
    missing = [labels for labels in burning + other + third if labels["alertname"] == "MillraceSLODataMissing"]
    expect(url, "without an operator", expected | {name(labels) for labels in missing})

    groups = request(f"{url}/api/v2/alerts/groups")
    pages = [group for group in groups if group["receiver"]["name"] == "pager"]
    together = sorted(sorted(name(alert["labels"]) for alert in group["alerts"]) for group in pages)
    burns = [(pipeline, "correct"), (pipeline, "fresh"), (third_pipeline, "correct")]
    wanted = [[f"MillraceErrorBudgetBurn {service} {slo} {tier}" for tier in ("1h", "6h")] for service, slo in burns]
    if together != [*wanted, ["MillraceOperatorAbsent"]]:
        sys.exit(f"pages are grouped otherwise: {together}")
    print(f"inhibition: of {len(burning + other + third) + 1} alerts {len(pages)} groups page, as they should")


main(sys.argv[1])
