"""Logits, loss and every gradient against transformers + PyTorch, computed here and now on the CPU.

All cases run in one process of protrain_probe (see probe.cpp).
"""

import collections
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import real_configs  # noqa: E402
import tiny_models as tiny  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("PROTRAIN_BUILD", TOP / "build" / "release")) / "bin" / "protrain_probe"
NAMES = list(tiny.CONFIGS)
RANDOM = ["llama_tied_bias", "qwen3", "gpt2", "opt", "opt_post_norm"]
SEEDS = list(range(7, 15))  # of the draws of samples; every test but that of bf16 takes the first
CUTS = ["llama", "qwen3_tied", "gpt2", "opt_post_norm"]


class Runs:
    """Everything that the probe computed, loaded on demand."""

    def __init__(self, folder):
        self.folder = folder
        self.draws = {name: {seed: tiny.make_samples(name, seed) for seed in SEEDS} for name in NAMES}
        self.samples = {name: self.draws[name][SEEDS[0]] for name in NAMES}
        self.models = {name: tiny.make_model(name, folder / name) for name in NAMES}
        self.packed, self.places = {}, {}
        cases = []
        for name in NAMES:
            samples = self.samples[name]
            whole = tiny.unpacked(samples, 8)
            self.packed[name], self.places[name] = tiny.packed(samples, 80, 2)
            everything = ["logits", "gradients"]
            cases.append(self.case(name, "whole", whole, everything))
            cases.append(self.case(name, "packed", self.packed[name], everything))
            for seed, draw in self.draws[name].items():
                cases.append(self.case(name, f"bf16.{seed}", tiny.unpacked(draw, 8), everything, compute="bf16"))
            cases.append(dict(describe=str(self.models[name]), out=str(folder / f"{name}.json")))
        for name in CUTS:
            for rows in (1, 2):
                cases.append(self.case(name, f"rows{rows}", tiny.unpacked(self.samples[name], rows), ["gradients"]))
            two = tiny.unpacked(self.samples[name], 4)
            for compute in ("fp32", "bf16"):
                cases.append(self.case(name, f"keep_{compute}", two, ["gradients"], compute=compute))
                cases.append(self.case(name, f"recompute_{compute}", two, ["gradients"], compute=compute,
                                       recompute=True, chunk_bytes=4096))
        for name in RANDOM:
            cases.append(self.case(name, "random", [], ["weights"], random_seed=11))
        for name, config in real_configs.CONFIGS.items():
            real = folder / f"real-{name}"
            real.mkdir()
            (real / "config.json").write_text(json.dumps(config))
            cases.append(dict(describe=str(real), out=str(folder / f"real-{name}.json")))
        (folder / "cases.json").write_text(json.dumps(cases))
        subprocess.run([PROBE, folder / "cases.json"], check=True, timeout=300,
                       env=dict(os.environ, OMP_WAIT_POLICY="passive"))

    def case(self, name, kind, batches, write, **more):
        return dict(run=str(self.models[name]), micro_batches=batches, write=write,
                    out=str(self.folder / f"{name}.{kind}.safetensors"), **more)

    def result(self, name, kind):
        return load_file(self.folder / f"{name}.{kind}.safetensors")

    def description(self, name):
        return json.loads((self.folder / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    torch.set_num_threads(2)
    return Runs(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def references(runs):
    known = {}

    def get(name):
        if name not in known:
            known[name] = tiny.reference(runs.models[name], runs.samples[name])
        return known[name]

    return get


def gradients_of(result):
    return {name[5:]: value for name, value in result.items() if name.startswith("grad.")}


def global_norm(gradients):
    return math.sqrt(sum(value.double().square().sum().item() for value in gradients.values()))


def check_gradients(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    floor = 1e-6 * global_norm(theirs)
    for name, wanted in theirs.items():
        distance = (ours[name] - wanted).norm().item()
        assert distance <= 1e-5 * wanted.norm().item() + floor, (name, distance, wanted.norm().item(), floor)


def whole_logits(result, samples):
    longest = max(len(tokens) for tokens, _ in samples)
    rows = result["logits.0"].view(len(samples), longest, -1)
    return [rows[i, : len(tokens)] for i, (tokens, _) in enumerate(samples)]


@pytest.mark.parametrize("name", NAMES)
def test_fp32_logits_loss_and_gradients_are_those_of_transformers(runs, references, name):
    result, wanted = runs.result(name, "whole"), references(name)
    for ours, theirs in zip(whole_logits(result, runs.samples[name]), wanted["logits"]):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    assert result["losses"].sum().item() == pytest.approx(wanted["loss"], rel=1e-6)
    check_gradients(gradients_of(result), wanted["gradients"])


@pytest.mark.parametrize("name", NAMES)
def test_packing_equals_one_by_one(runs, references, name):
    result, wanted = runs.result(name, "packed"), references(name)
    for batch, places in enumerate(runs.places[name]):
        for number, start in places:
            theirs = wanted["logits"][number]
            ours = result[f"logits.{batch}"][start : start + len(theirs)]
            assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max(), number
    assert result["losses"].sum().item() == pytest.approx(wanted["loss"], rel=1e-6)
    check_gradients(gradients_of(result), wanted["gradients"])


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("rows", [1, 2])
def test_the_cut_into_micro_batches_does_not_matter(runs, references, name, rows):
    result, wanted = runs.result(name, f"rows{rows}"), references(name)
    assert len(result["losses"]) == 8 // rows
    assert result["losses"].sum().item() == pytest.approx(wanted["loss"], rel=1e-6)
    check_gradients(gradients_of(result), wanted["gradients"])


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_recompute_and_chunk_size_change_no_bit(runs, name, compute):
    keep, recompute = runs.result(name, f"keep_{compute}"), runs.result(name, f"recompute_{compute}")
    assert keep.keys() == recompute.keys() and len(gradients_of(keep)) > 10
    for key, value in keep.items():
        assert torch.equal(value, recompute[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_the_forward_only_head_gives_the_same_loss(runs, name):
    for kind in ("whole", "packed", f"bf16.{SEEDS[0]}"):
        result = runs.result(name, kind)
        assert torch.equal(result["losses"], result["forward_losses"])


@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_as_near_to_fp32_as_pytorch_in_bf16(runs, references, name):
    """Logits and each gradient within 1.25 times, root mean square over draws; biases of keys, noise in both, with a floor.

    One draw tells little of a small tensor: of a bias's 64 numbers the ratio may lie far on either side of 1.
    """
    mine, pytorchs = collections.Counter(), collections.Counter()  # squared distances
    for seed, samples in runs.draws[name].items():
        result = runs.result(name, f"bf16.{seed}")
        exact = references(name) if seed == SEEDS[0] else tiny.reference(runs.models[name], samples)
        theirs = tiny.batch_reference(runs.models[name], samples, torch.bfloat16)
        for one, other, wanted in zip(whole_logits(result, samples), theirs["logits"], exact["logits"]):
            mine["logits"] += (one - wanted).square().sum().item()
            pytorchs["logits"] += (other - wanted).square().sum().item()
        ours = gradients_of(result)
        assert sorted(ours) == sorted(exact["gradients"])
        for key, wanted in exact["gradients"].items():
            mine[key] += (ours[key] - wanted).square().sum().item()
            pytorchs[key] += (theirs["gradients"][key] - wanted).square().sum().item()
    floor = 1e-4 * global_norm(references(name)["gradients"]) * math.sqrt(len(SEEDS))
    for key in mine:
        bound = 1.25 * math.sqrt(pytorchs[key]) + (floor if key.endswith(tiny.K_BIASES) else 0)
        assert math.sqrt(mine[key]) <= bound, (key, math.sqrt(mine[key]), math.sqrt(pytorchs[key]), floor)


@pytest.mark.parametrize("name", NAMES)
def test_names_shapes_and_order_of_parameters_are_those_of_the_state_dict(runs, name):
    described = runs.description(name)
    model = AutoModelForCausalLM.from_config(tiny.config_of(name))
    wanted = {key: list(parameter.shape) for key, parameter in model.named_parameters()}
    assert {one["name"]: one["shape"] for one in described["parameters"]} == wanted
    aliases = set(model.state_dict()) - set(wanted)
    assert set(described["tied_names"]) == aliases


@pytest.mark.parametrize("name", [name for name in NAMES if name.split("_")[0] not in ("gpt2", "opt")])
def test_rotary_frequencies_are_those_of_transformers(runs, name):
    described = runs.description(name)
    model = AutoModelForCausalLM.from_config(tiny.config_of(name))
    wanted = model.model.rotary_emb.inv_freq.double()
    ours = torch.tensor(described["inverse_frequency"], dtype=torch.double)
    assert ((ours - wanted) / wanted).abs().max() <= 3e-7
    assert described["attention_factor"] == pytest.approx(model.model.rotary_emb.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("name", list(real_configs.CONFIGS))
def test_real_configurations_have_transformers_parameters(runs, name):
    described, config = runs.description(f"real-{name}"), real_configs.CONFIGS[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]].from_dict(config))
    wanted = {key: list(parameter.shape) for key, parameter in model.named_parameters()}
    assert {one["name"]: one["shape"] for one in described["parameters"]} == wanted
    assert described["count"] == sum(parameter.numel() for parameter in model.parameters())


def tensor_class(name):
    return ".".join(part for part in name.split(".") if not part.isdigit())


@pytest.mark.parametrize("name", RANDOM)
def test_random_weights_have_transformers_means_and_variances(runs, name):
    """Per class of tensors (a layer's q_proj, ...). Bounds are five standard errors of the two samples."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(tiny.config_of(name))
    ours, theirs = {}, {}
    for key, value in runs.result(name, "random").items():
        if key.startswith("weight."):
            ours.setdefault(tensor_class(key[7:]), []).append(value.flatten())
    zero_rows = {one["name"]: one["zero_row"] for one in runs.description(name)["parameters"]}
    for key, value in model.named_parameters():
        theirs.setdefault(tensor_class(key), []).append(value.detach().flatten())
        if zero_rows[key] >= 0:
            row = zero_rows[key]
            mine = runs.result(name, "random")["weight." + key]
            assert torch.equal(mine[row], torch.zeros_like(mine[row]))
            assert torch.equal(value[row], torch.zeros_like(value[row]))
    assert ours.keys() == theirs.keys()
    for key in ours:
        mine, wanted = torch.cat(ours[key]).double(), torch.cat(theirs[key]).double()
        n, std = wanted.numel(), wanted.std(correction=0).item()
        assert abs(mine.mean() - wanted.mean()) <= 5 * std * math.sqrt(2 / n), key
        assert abs(mine.std(correction=0).item() - std) <= 5 * std / math.sqrt(n), key
        if std == 0:
            assert torch.equal(mine, wanted), key
