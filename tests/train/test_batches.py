"""The same samples, however they are cut into micro-batches and rows, are the same step."""

import pytest
import torch
from train_support import protrain, random_samples, rows, weights, write_config, write_tokens

LENGTHS = [3, 500, 41, 7, 260, 113, 2, 90]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("uneven") / "train.ptk", random_samples(LENGTHS))


def one_update(model, data, output, **keys):
    config = write_config(output.with_suffix(".yaml"), model_name_or_path=str(model), train_file=str(data),
                          output_dir=str(output), cutoff_len=512, learning_rate=1e-3, max_grad_norm=0.5, max_steps=2,
                          save_steps=0, logging_steps=1, bf16=False, device="cpu", weight_decay=0.1, **keys)
    protrain("train", config)
    return rows(output), weights(output)


def reference(model, samples):
    """Loss and gradient norm over all supervised tokens, sample by sample, in PyTorch."""
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    count = sum(len(sample) - 1 for sample in samples)
    total = 0.0
    for sample in samples:
        logits = net(torch.tensor([sample])).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(sample[1:]), reduction="sum") / count
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9)
    return total, norm.item()


def test_every_cut_gives_the_reference_step(model, data, tmp_path):
    expected_loss, expected_norm = reference(model, random_samples(LENGTHS))
    cuts = {
        "8x1": dict(per_device_train_batch_size=8, gradient_accumulation_steps=1),
        "4x2": dict(per_device_train_batch_size=4, gradient_accumulation_steps=2),
        "1x8": dict(per_device_train_batch_size=1, gradient_accumulation_steps=8),
        "packed": dict(per_device_train_batch_size=4, gradient_accumulation_steps=1, packing=True),
        "packed 1x4": dict(per_device_train_batch_size=1, gradient_accumulation_steps=4, packing=True),
    }
    results = {name: one_update(model, data, tmp_path / name.replace(" ", "_"), **cut) for name, cut in cuts.items()}
    first_rows, first_weights = results["8x1"]
    initial = weights(model)
    for name, (steps, changed) in results.items():
        assert steps[0]["supervised_tokens"] == sum(LENGTHS) - len(LENGTHS), name
        assert steps[0]["loss"] == pytest.approx(expected_loss, rel=1e-5), name
        assert steps[0]["grad_norm"] == pytest.approx(expected_norm, rel=1e-5), name
        assert steps[1]["loss"] == pytest.approx(first_rows[1]["loss"], rel=1e-5), name
        # Adam divides a gradient by its own size: rounding noise in the few elements whose gradient is nearly zero moves
        # them by a whole step, so it is the change of the tensor that must agree.
        for key, tensor in changed.items():
            change = first_weights[key] - initial[key]
            assert (tensor - first_weights[key]).norm() <= 1e-3 * change.norm(), (name, key)


def test_evaluation_is_the_same_for_every_batch(model, data, tmp_path):
    losses = {}
    for rows_of_batch, packing in [(1, False), (3, False), (8, False), (2, True)]:
        output = tmp_path / f"eval{rows_of_batch}{packing}"
        config = write_config(output.with_suffix(".yaml"), model_name_or_path=str(model), train_file=str(data),
                              validation_file=str(data), output_dir=str(output), cutoff_len=512, max_steps=0,
                              per_device_eval_batch_size=rows_of_batch, packing=packing, bf16=False, device="cpu")
        protrain("train", config)
        (row,) = rows(output, "evaluate")
        assert row["eval_supervised_tokens"] == sum(LENGTHS) - len(LENGTHS)
        losses[rows_of_batch, packing] = row["eval_loss"]
    expected, _ = reference(model, random_samples(LENGTHS))
    for cut, loss in losses.items():
        assert loss == pytest.approx(expected, rel=1e-5), cut
