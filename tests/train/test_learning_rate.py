"""The learning rate of every update is that of transformers' schedulers, with accumulation and across resumes."""

import pytest
import torch
from train_support import protrain, rows, write_config
from transformers import get_scheduler

CASES = {
    "constant": (dict(lr_scheduler_type="constant"), dict(name="constant")),
    "warm": (dict(lr_scheduler_type="constant_with_warmup", warmup_steps=3),
             dict(name="constant_with_warmup", num_warmup_steps=3)),
    "linear": (dict(lr_scheduler_type="linear", warmup_steps=0.25), dict(name="linear", num_warmup_steps=3)),
    "cosine": (dict(lr_scheduler_type="cosine", warmup_steps=3), dict(name="cosine", num_warmup_steps=3)),
    "cosine_min": (dict(lr_scheduler_type="cosine_with_min_lr", warmup_steps=2, min_lr_ratio=0.2),
                   dict(name="cosine_with_min_lr", num_warmup_steps=2, scheduler_specific_kwargs=dict(min_lr_rate=0.2))),
    "wsd": (dict(lr_scheduler_type="wsd", warmup_steps=2, lr_decay_steps=5, lr_decay_type="1-sqrt", min_lr_ratio=0.1),
            dict(name="warmup_stable_decay", num_warmup_steps=2,
                 scheduler_specific_kwargs=dict(num_decay_steps=5, decay_type="1-sqrt", min_lr_ratio=0.1))),
}
TOTAL = 11


def expected(arguments):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=3e-4)
    scheduler = get_scheduler(optimizer=optimizer, num_training_steps=TOTAL, **arguments)
    rates = []
    for _ in range(TOTAL):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("case", CASES)
def test_every_update_has_the_rate_of_transformers(case, model, long_data, tmp_path):
    keys, arguments = CASES[case]
    output = tmp_path / "out"
    config = write_config(tmp_path / "c.yaml", model_name_or_path=str(model), train_file=str(long_data),
                          output_dir=str(output), learning_rate=3e-4, max_steps=TOTAL, logging_steps=1, save_steps=4,
                          per_device_train_batch_size=2, gradient_accumulation_steps=2, cutoff_len=32, device="cpu",
                          bf16=False, **keys)
    protrain("train", config)
    rates = [row["learning_rate"] for row in rows(output)]
    assert rates == pytest.approx(expected(arguments), rel=1e-13, abs=0)
    if case == "cosine":
        # Resumed in the middle: the rows of the file are those of one run.
        protrain("train", config, "--resume_from_checkpoint", output / "checkpoint-4")
        assert [row["learning_rate"] for row in rows(output)] == rates
        assert [row["step"] for row in rows(output)] == list(range(1, TOTAL + 1))
