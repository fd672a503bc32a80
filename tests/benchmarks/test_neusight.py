"""Test the benchmark of left-out GPUs on made-up rows; the published ones are not here."""

import csv
import importlib
import json
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

from joulecast.catalogue import find_data_sheet
from joulecast.errors import InputError
from joulecast.kinds import network_work
from joulecast.records import Setup

FOLDER = Path(__file__).parents[2] / "benchmarks" / "devices"
SCRIPTS = (
    "published_steps",
    "neusight_data",
    "neusight_anchors",
    "step_products",
    "own_kernels",
    "kernel_choice",
    "shared_devices",
    "duration_law",
    "run_neusight",
    "run_published",
    "report_neusight",
)
V100, P100, A100 = "Tesla V100-PCIE-32GB", "Tesla P100-PCIE-16GB", "NVIDIA A100-PCIE-40GB"
KERNELS = [
    ("linear", (1, 4096, 1024, 4096)),
    ("linear", (1, 1024, 768, 768)),
    ("linear", (1, 512, 4096, 1024)),
    ("bmm", (96, 512, 64, 512)),
    ("bmm", (96, 512, 512, 64)),
    ("addu", (16384, 4096)),
    ("softmax", (8192, 512)),
]
STEPS = [("bert", "inf", 512, 8), ("bert", "train", 512, 8)]


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(FOLDER))
    try:
        yield Namespace(**{name: importlib.import_module(name) for name in SCRIPTS})
    finally:
        sys.path.remove(str(FOLDER))
        for name in SCRIPTS:
            sys.modules.pop(name, None)


def time_pieces(counts, device):
    """Return seconds at 80 % of a data sheet's rates."""
    sheet = find_data_sheet(device)
    leaves = [(leaf, n * k) for piece, n in counts.items() for leaf, k in piece.own_leaves]
    return (
        sum(
            n
            * (
                3e-6
                + max(one.flops / sheet.flops_per_s["fp32"], one.size_bytes / sheet.bytes_per_s)
            )
            for one, n in leaves
        )
        / 0.8
    )


def write_data(scripts, folder, factors):
    """Write kernels and steps of GPUs, each slower than its law by a factor."""
    folder.mkdir()
    data, law = scripts.neusight_data, scripts.kernel_choice
    tables = {
        "matmul_kernels.csv": ["device,op,b,m,n,k,latency_ms"],
        "vector_kernels.csv": ["device,op,rows,columns,latency_ms"],
        "steps.csv": [
            "device,model,mode,tokens,batch,measured_ms,measured_forward_ms,measured_backward_ms,"
            "neusight_ms,roofline_ms,habitat_ms,li_ms"
        ],
    }
    for device, factor in factors.items():
        for op, sizes in KERNELS:
            ms = 1e3 * factor * time_pieces({data.make_kernel_piece(op, sizes): 1.0}, device)
            name = "matmul_kernels.csv" if len(sizes) == 4 else "vector_kernels.csv"
            tables[name].append(",".join(map(str, (device, op, *sizes, ms))))
        for model, mode, tokens, batch in STEPS:
            step = data.StepRow(device, model, mode, tokens, batch, 0.0, 0.0, 0.0, {})
            ms = 1e3 * factor * time_pieces(law.count_row(step), device)
            line = (device, model, mode, tokens, batch, ms, ms / 3, ms * 2 / 3, 1.5 * ms, ms / 2)
            tables["steps.csv"].append(",".join(map(str, (*line, "", ""))))
    for name, lines in tables.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def run(scripts, monkeypatch, data, out, *options):
    arguments = ["run_neusight.py", "--data", str(data), "--out", str(out), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    scripts.run_neusight.main()
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def predictions(scripts, tmp_path_factory):
    """Predict the V100, once as fast as the law says and once ten times slower."""
    folder, patch = tmp_path_factory.mktemp("neusight"), pytest.MonkeyPatch()
    found = []
    with patch.context() as context:
        # Published steps, and operators of all twelve models, would take minutes.
        context.setattr(scripts.duration_law, "read_published_steps", lambda without: [])
        networks = [scripts.neusight_data.load_network("bert", "train", 512)]
        context.setattr(scripts.kernel_choice, "list_networks", lambda: networks)
        for factor in (1.0, 10.0):
            data = write_data(scripts, folder / str(factor), {P100: 1.0, A100: 1.0, V100: factor})
            out = folder / f"{factor}.json"
            found.append(run(scripts, context, data, out, "--gpu", "V100", "--anchors"))
    return Namespace(folder=folder, fast=found[0][V100], slow=found[1][V100])


def list_predicted(found):
    return [one["predicted_ms"] for one in found["steps"]]


def test_nothing_of_the_left_out_gpu_is_used_but_its_anchors(predictions):
    fast, slow = predictions.fast, predictions.slow
    assert list_predicted(slow["datasheet"]) == pytest.approx(list_predicted(fast["datasheet"]))
    ratios = [
        one / other
        for one, other in zip(
            list_predicted(slow["anchors"]), list_predicted(fast["anchors"]), strict=True
        )
    ]
    assert min(ratios) > 2.0


def test_a_law_that_all_gpus_share_is_found(predictions):
    for one in predictions.fast["datasheet"]["steps"]:
        assert one["predicted_ms"] == pytest.approx(one["measured_ms"], rel=0.35)
        assert 0.0 < one["log_sd"] < 1.0


def test_anchors_are_not_scored_as_kernels(predictions):
    found = predictions.fast["anchors"]
    assert len(found["anchors"]) == 6
    assert sum(one["rows"] for one in found["kernels"].values()) == len(KERNELS) - 6


def test_report_shows_rivals_and_leaves_gaps(scripts, predictions, monkeypatch, capsys):
    path = predictions.folder / "1.0.json"
    monkeypatch.setattr(sys, "argv", ["report_neusight.py", str(path)])
    scripts.report_neusight.main()
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {V100} | training")]
    assert row.endswith("| 50.0% | 50.0% |  |  |")
    assert "inside the 95 % interval" in text
    assert path.with_suffix(".md").read_text() == text[:-1]
    assert "<svg" in path.with_suffix(".svg").read_text()


def test_networks_have_the_flops_of_their_formula(scripts):
    network = scripts.neusight_data.load_network("gpt2_large", "train", 1024)
    width, layers, vocabulary, tokens = 1280, 36, 50257, 1024
    products = 12 * width**2 * layers + width * vocabulary + 2 * tokens * width * layers
    inference = Setup(batch=3, phase="inference")
    assert network_work(network, inference).total.flops == 2 * 3 * tokens * products
    training = Setup(batch=3, accumulate=0)
    assert network_work(network, training).total.flops == 6 * 3 * tokens * products


def test_kernels_have_the_coordinates_of_a_network_operator(scripts):
    data = scripts.neusight_data
    network = data.load_network("bert", "inf", 512)
    setup = Setup(batch=8, phase="inference")
    works = scripts.step_products.list_step_work(network, setup)
    products = {work.products[0]: work.piece for work in works if work.products}
    for product, piece in products.items():
        if product.op == "bmm" or product.sizes[1] == 8 * 512:
            kernel = data.make_kernel_piece(product.op, product.sizes)
            assert (kernel.label, kernel.operator_class) == (piece.label, piece.operator_class)
            assert kernel.point == pytest.approx(piece.point)
            assert (kernel.flops, kernel.size_bytes) == (piece.flops, piece.size_bytes)


def test_own_kernels_add_up_to_the_step(scripts, tmp_path):
    data = write_data(scripts, tmp_path / "data", {V100: 1.0})
    kernels = scripts.neusight_data.read_kernels(data)
    steps = scripts.neusight_data.read_steps(data)
    for row, forward_s, backward_s in scripts.own_kernels.sum_kernels(kernels, steps):
        assert forward_s + backward_s == pytest.approx(row.duration_s, rel=0.1)
        assert (backward_s > forward_s) == (row.mode == "train")


def test_architecture_is_left_out_with_its_gpu(scripts):
    row = scripts.neusight_data.KernelRow
    kernels = [row(name, "addu", (8, 8), 1.0) for name in (A100, "NVIDIA A100 80GB PCIe", V100)]
    left, _ = scripts.run_neusight.leave_out(kernels, [], A100, architecture=True)
    assert [one.device for one in left] == [A100, V100]


def test_wrong_data_are_refused_in_one_line(scripts, tmp_path):
    data = scripts.neusight_data
    with pytest.raises(InputError, match="there is no file"):
        data.read_steps(tmp_path)
    with (tmp_path / "steps.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["device", "model"], ["x", "y"]])
    with pytest.raises(InputError, match="has no mode"):
        data.read_steps(tmp_path)
    with pytest.raises(InputError, match="no rule for the kernel 'conv'"):
        data.make_kernel_piece("conv", (1, 2))
    with pytest.raises(InputError, match="read_models"):
        data.load_network("bert", "train", 7)
    with pytest.raises(InputError, match="no GPU is called H100"):
        scripts.run_neusight.choose_devices([V100], ["H100"])


def test_published_steps_have_networks_and_data_sheets(scripts):
    steps = scripts.published_steps.read_published_steps()
    assert len(steps) == 189
    for step in steps:
        assert (scripts.published_steps.NETWORKS / step.file_name).is_file()
        find_data_sheet(step.device).find_peak(step.precision)
        assert 1e-2 < step.duration_s < 3.0


def test_published_steps_of_a_gpu_are_left_out_by_any_of_its_names(scripts):
    read = scripts.published_steps.read_published_steps
    names = {find_data_sheet(step.device).name for step in read(without="H100 SXM")}
    assert len(names) == 12 and "nvidia-h100-sxm" not in names
    assert read(without="H100 SXM") == read(without="NVIDIA H100 80GB HBM3")


def test_published_steps_are_thinned_and_others_are_not(scripts):
    published = scripts.published_steps.read_published_steps()
    own = [
        scripts.neusight_data.StepRow(V100, "bert", "inf", 512, n, 1, 1, 0, {}) for n in range(40)
    ]
    kept = scripts.shared_devices.thin_steps([*published, *own])
    assert kept[-40:] == own
    counts = Counter((one.source, one.device) for one in kept[:-40])
    assert max(counts.values()) <= scripts.shared_devices.PUBLISHED_STEPS
    assert set(counts) == {(one.source, one.device) for one in published}


def test_steps_do_not_count_where_a_gpu_has_kernels(scripts, monkeypatch):
    networks = [scripts.neusight_data.load_network("bert", "train", 512)]
    monkeypatch.setattr(scripts.kernel_choice, "list_networks", lambda: networks)
    scripts.kernel_choice._find_operator_sizes.cache_clear()
    kernels = [scripts.neusight_data.KernelRow(V100, op, sizes, 1e-3) for op, sizes in KERNELS]
    steps = [
        scripts.neusight_data.StepRow(name, "bert", "inf", 512, 8, 0.1, 0.1, 0.0, {})
        for name in (V100, P100)
    ]
    found = {one.sheet.name: one for one in scripts.shared_devices.collect_devices(kernels, steps)}
    assert all(one.is_isolated for one in found[find_data_sheet(V100).name].observations)
    (step,) = found[find_data_sheet(P100).name].observations
    assert not step.is_isolated
    scripts.kernel_choice._find_operator_sizes.cache_clear()


def test_description_of_published_steps_has_errors_and_coverage(scripts):
    rows = [
        {"measured_ms": 10.0, "predicted_ms": 11.0, "roofline_ms": 5.0, "log_sd": 0.2},
        {"measured_ms": 10.0, "predicted_ms": 20.0, "roofline_ms": 5.0, "log_sd": 0.2},
    ]
    text = scripts.run_published.describe("a GPU", rows)
    assert "MAPE 55.0%" in text and "50% inside" in text and "roofline 50.0%" in text
