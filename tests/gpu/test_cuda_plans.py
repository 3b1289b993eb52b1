"""On a GPU: no plan changes a bit with `deterministic: true`, resume included, and the GPU trains the model that the CPU trains."""

import importlib.util
import json
import pathlib
import subprocess

import pytest
import torch

SHARED = pathlib.Path(__file__).resolve().parents[1] / "train" / "train_support.py"
spec = importlib.util.spec_from_file_location("train_support", SHARED)
support = importlib.util.module_from_spec(spec)
spec.loader.exec_module(support)


def has_gpu():
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not has_gpu(), reason="needs a GPU; none is here")
STEPS = 10


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    model = support.make_model(folder / "model", hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                               num_attention_heads=4, num_key_value_heads=2)
    data = support.write_tokens(folder / "train.ptk", support.random_samples([20 + i * 37 % 230 for i in range(200)]))
    return folder, model, data


def run(job, name, *words, **more):
    folder, model, data = job
    output = folder / name
    keys = dict(dict(model_name_or_path=str(model), train_file=str(data), validation_file=str(data), output_dir=str(output),
                     cutoff_len=256, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-3,
                     max_steps=STEPS, logging_steps=1, save_steps=5, eval_steps=5, warmup_steps=2, device="cuda", bf16=True,
                     deterministic=True, export_dtype="float32"), **more)
    support.protrain("train", support.write_config(folder / f"{name}.yaml", **keys), *words)
    return output


def assert_equal(one, other, first=0):
    ours, theirs = support.weights(one), support.weights(other)
    for key in theirs:
        assert torch.equal(ours[key], theirs[key]), key
    values = [[(row["loss"], row["grad_norm"]) for row in support.rows(output)] for output in (one, other)]
    assert values[0] == values[1][first:]


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("bf16", [True, False])
def test_plans_and_resume_change_no_bit(job, packing, bf16):
    name = f"{'packed' if packing else 'rows'}-{'bf16' if bf16 else 'fp32'}"
    keys = dict(packing=packing, bf16=bf16)
    straight = run(job, name, recompute=False, **keys)
    assert_equal(run(job, f"{name}-recompute", recompute=True, **keys), straight)
    assert_equal(run(job, f"{name}-chunks", recompute=False, chunk_bytes=4096, **keys), straight)
    resumed = run(job, f"{name}-resumed", "--resume_from_checkpoint", straight / "checkpoint-5", recompute=True,
                  chunk_bytes=65536, **keys)
    assert_equal(resumed, straight, first=5)


ON_HOST = {"n_resident": 0, "embedding": "cpu", "head": "cpu"}
PLANS = {
    "light": {"activation": "keep_light"},
    "updates-on-cpu": {"activation": "recompute", "place": ON_HOST},
    "streamed": {"chunk_bytes": 1 << 20, "n_persist": 0, "n_buffer": 4, "gradient_slots": 4, "activation": "recompute", "place": ON_HOST},
    "streamed-swap": {"chunk_bytes": 4 << 20, "n_persist": 1, "n_buffer": 2, "gradient_slots": 2, "activation": "swap",
                      "place": {"n_resident": 1, "embedding": "resident", "head": "cpu"}},
    "mixed": {"chunk_bytes": 1 << 20, "n_persist": 2, "activation": ["swap", "recompute_host", "recompute", "keep_light"], "place": ON_HOST},
}


@pytest.mark.parametrize("order", ["micro_batch", "layer"])
@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_streamed_swapped_and_offloaded_plans_change_no_bit(job, order, clip):
    name = f"{order}-{clip}"
    plain = run(job, name, "--plan", json.dumps({"order": order, "activation": "keep"}), max_grad_norm=clip)
    for plan, knobs in PLANS.items():
        planned = run(job, f"{name}-{plan}", "--plan", json.dumps(dict(knobs, order=order)), max_grad_norm=clip)
        assert_equal(planned, plain)
        memory = json.loads((planned / "plan.json").read_text())
        last = support.rows(planned)[-1]
        assert last["arena_high_water_bytes"] == memory["predicted_device_bytes"], plan
        assert last["unplanned_allocations"] == 0, plan


@pytest.mark.parametrize("packing", [False, True])
def test_the_gpu_trains_what_the_cpu_trains(job, packing):
    name = "packed" if packing else "rows"
    cpu = run(job, f"{name}-cpu", packing=packing, device="cpu", bf16=False)
    for bf16, tolerance in ((False, 1e-4), (True, 1e-2)):
        for deterministic in (True, False):
            gpu = run(job, f"{name}-gpu-{bf16}-{deterministic}", packing=packing, bf16=bf16, deterministic=deterministic)
            for ours, theirs in zip(support.rows(gpu), support.rows(cpu), strict=True):
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=tolerance)
                assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=5 * tolerance)
