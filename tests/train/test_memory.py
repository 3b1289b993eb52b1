"""Resident memory stays flat over thousands of steps with evaluation and saving."""

import threading
import time

import numpy as np
from train_support import make_model, random_samples, rows, start, write_config, write_tokens

STEPS = 2000


def test_two_thousand_steps_do_not_grow(tmp_path):
    model = make_model(tmp_path / "model", hidden_size=16, intermediate_size=24, num_hidden_layers=1)
    data = write_tokens(tmp_path / "t.ptk", random_samples([12] * 64))
    output = tmp_path / "out"
    config = write_config(tmp_path / "c.yaml", model_name_or_path=str(model), train_file=str(data),
                          validation_file=str(data), output_dir=str(output), cutoff_len=16, max_steps=STEPS,
                          per_device_train_batch_size=2, logging_steps=10, eval_steps=100, save_steps=100,
                          save_total_limit=2, bf16=False, device="cpu", report_to="tensorboard")
    process = start("train", config)
    seen = []  # (step, resident KiB)

    def watch():
        while process.poll() is None:
            try:
                status = open(f"/proc/{process.pid}/status").read()
                with open(output / "metrics.jsonl", "rb") as metrics:
                    metrics.seek(max(0, metrics.seek(0, 2) - 4096))
                    last = metrics.read().decode().rstrip("\n").rsplit("\n", 1)[-1]
                step = int(last.split('"step": ', 1)[1].split(",", 1)[0])
                seen.append((step, int(status.split("VmRSS:", 1)[1].split()[0])))
            except (OSError, IndexError, ValueError):
                pass
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    _, errors = process.communicate(timeout=280)
    thread.join()
    assert process.returncode == 0, errors
    assert rows(output)[-1]["step"] == STEPS
    steps, resident = np.array([point for point in seen if point[0] >= 200], dtype=float).T
    assert len(steps) > 50
    slope_mib = np.polyfit(steps, resident / 1024, 1)[0] * 100
    print(f"{slope_mib:.3f} MiB per 100 steps over {len(steps)} readings")
    assert slope_mib < 1
