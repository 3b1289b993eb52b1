"""What the compute lane waits for, from a Chrome trace of one step: gaps between its spans, each given to the lane whose span ended
last before the compute lane went on. A load that itself had waited for an update of the CPU is given to that lane, but for its own
duration. Seconds and shares of the step."""


def exposed(trace):
    events = [e for e in (trace["traceEvents"] if isinstance(trace, dict) else trace) if e.get("ph") == "X"]
    lanes = {}
    names = {e.get("tid"): e["args"]["name"] for e in (trace["traceEvents"] if isinstance(trace, dict) else trace) if e.get("ph") == "M" and e.get("name") == "thread_name"}
    for event in events:
        lane = names.get(event["tid"], str(event["tid"]))
        lanes.setdefault(lane, []).append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    if "compute" not in lanes:
        return {}
    begin = min(b for spans in lanes.values() for b, _ in spans)
    end = max(e for spans in lanes.values() for _, e in spans)
    compute = sorted(lanes["compute"])
    gaps, at = [], begin
    for b, e in compute:
        if b > at:
            gaps.append((at, b))
        at = max(at, e)
    if end > at:
        gaps.append((at, end))
    blame = {}
    for b, e in gaps:
        ended = [(max(y for x, y in spans if y <= e + 2e-5), lane) for lane, spans in lanes.items()
                 if lane != "compute" and any(y <= e + 2e-5 and y > b - 2e-5 for x, y in spans)]
        lane = max(ended)[1] if ended else "host"
        if lane == "h2d":
            load = max(x for x, y in lanes["h2d"] if b - 2e-5 < y <= e + 2e-5)
            late = max(0.0, load - b)
            if late > 0 and any(abs(y - load) < 1e-3 for _, y in lanes.get("cpu_update", [])):
                blame["cpu_update"] = blame.get("cpu_update", 0) + late
                b += late
        blame[lane] = blame.get(lane, 0) + e - b
    step = end - begin
    return {"step_seconds": step, "busy": {lane: sum(e - b for b, e in spans) for lane, spans in lanes.items()},
            "compute_waits": blame, "compute_waits_share": {lane: seconds / step for lane, seconds in blame.items()}}
