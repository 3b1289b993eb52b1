#!/usr/bin/env python3
"""table.py RUNS.json...: what plan_runs wrote, as a table: predicted beside measured, their errors, and the searched plan of each
model, batch and limit beside the best by hand."""

import json
import pathlib
import sys


def finished(row):
    return "error" in row


def main():
    rows = [row for name in sys.argv[1:] for row in json.loads(pathlib.Path(name).read_text())]
    print("| case | predicted s | measured s | error | tokens/s | device GiB, predicted less high-water |\n" + "| --- " * 6 + "|")
    for row in rows:
        if not finished(row):
            print(f"| {row['case']} | {row.get('refused', 'was cut')} |")
            continue
        speed = row["tokens_a_step"] / row["step_seconds"]
        missed = row["planned_device"] - row["high_water_device"]
        print(f"| {row['case']} | {row['predicted_step_seconds']:.3f} | {row['step_seconds']:.3f} | {100 * row['error']:+.1f} % |"
              f" {speed:,.0f} | {row['planned_device'] / 2**30:.2f}, {missed} B |")
    errors = [abs(row["error"]) for row in rows if finished(row)]
    if not errors:
        return
    print(f"\n{len(errors)} runs: mean absolute error {100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %")

    groups = {}
    for row in rows:
        groups.setdefault("-".join(row["case"].split("-")[:3]), []).append(row)
    for name, group in groups.items():
        searched = [row["step_seconds"] for row in group if finished(row) and row["case"].endswith("-auto")]
        by_hand = [row["step_seconds"] for row in group if finished(row) and not row["case"].endswith("-auto")]
        if searched and by_hand:
            print(f"{name}: searched {searched[0]:.3f} s, best of {len(by_hand)} by hand {min(by_hand):.3f} s"
                  f" ({100 * (searched[0] / min(by_hand) - 1):+.1f} %)")


if __name__ == "__main__":
    main()
