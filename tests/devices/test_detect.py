"""Device detection: names, system files, and the GPU behind a CUDA index."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fake_pynvml
from joulecast.devices.detect import (
    detect_device,
    find_gpu,
    make_slug,
    multiplies_bf16,
    parse_on,
    visible_gpu,
)
from joulecast.records import Profile
from joulecast.system.errors import InputError, MissingError


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
    return fake_pynvml


@given(st.text())
def test_slug_is_safe_in_files_and_commands(name):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", make_slug(name))


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("AMD EPYC 9R14 96-Core Processor", "amd-epyc-9r14"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "intel-xeon-e5-2680-v4"),
        ("AMD Ryzen 7 5800H with Radeon Graphics", "amd-ryzen-7-5800h"),
        ("Intel(R) Xeon(R) Processor", "intel-xeon"),
    ],
)
def test_slugs_of_known_processors(name, slug):
    assert make_slug(name) == slug


def test_one_device_is_named_at_a_time():
    for on in ("cuda:0,1", "cuda:0+cuda:1", "cpu,cuda:0"):
        with pytest.raises(InputError, match="one device at a time"):
            detect_device(on)
    for on in ("", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "mps"):
        with pytest.raises(InputError, match="give cpu or cuda:0"):
            find_gpu(on)
    assert parse_on("cpu") == ("cpu", None)
    assert parse_on("cuda") == parse_on("cuda:0") == ("cuda", 0)
    assert parse_on("cuda:12") == ("cuda", 12)


# ---------------------------------------------------------------------------------------------
# Processors


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_processor_is_read_from_the_system(tmp_path):
    cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14 96-Core Processor\n"
    write(tmp_path / "proc/cpuinfo", cpuinfo * 2)
    write(tmp_path / "proc/meminfo", "MemFree: 1 kB\nMemTotal:       24682416 kB\n")
    write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    device = detect_device("cpu", proc=tmp_path / "proc", system=tmp_path / "sys")
    assert device.name == "amd-epyc-9r14"
    assert device.processor == "AMD EPYC 9R14 96-Core Processor"
    assert device.memory_bytes == 24682416 * 1024
    assert device.power_mode == "performance"
    assert device.driver == "", "a new kernel is not a new device"


def test_board_is_named_by_its_device_tree(tmp_path):
    write(tmp_path / "cpuinfo", "processor\t: 0\nBogoMIPS\t: 62.50\nCPU part\t: 0x004\n")
    write(tmp_path / "device-tree/model", "NVIDIA Jetson Xavier NX\0")
    device = detect_device("cpu", proc=tmp_path, system=tmp_path)
    assert device.name == "nvidia-jetson-xavier-nx"


def test_system_without_information_still_has_a_name(tmp_path):
    device = detect_device("cpu", proc=tmp_path, system=tmp_path)
    assert device.name and (device.memory_bytes, device.power_mode) == (0, "")
    here = detect_device("cpu")
    assert here.name and here.memory_bytes > 0


# ---------------------------------------------------------------------------------------------
# Jetson boards: files as on a Jetson AGX Xavier with JetPack 5. Power modes are named in
# /etc/nvpmodel.conf (Jetson Linux Developer Guide, "Power Management"), the current one is in
# /var/lib/nvpmodel/status.


def write_xavier(root, mode="pmode:0002 fmode:quiet\n"):
    write(root / "proc/device-tree/model", "Jetson-AGX\0")
    write(root / "proc/device-tree/compatible", "nvidia,p2822-0000+p2888-0004\0nvidia,tegra194\0")
    write(root / "proc/meminfo", "MemTotal:       32682416 kB\n")
    write(
        root / "etc/nvpmodel.conf",
        "# < POWER_MODEL ID=2 NAME=AN_EXAMPLE >\n< POWER_MODEL ID=0 NAME=MAXN >\n"
        "CPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=MODE_15W >\n< PM_CONFIG DEFAULT=2 >\n",
    )
    write(root / "var/lib/nvpmodel/status", mode)
    clock(root / "sys/devices/system/cpu/cpu0/cpufreq", "scaling_", 1190400, 1190400, "schedutil")
    clock(root / "sys/class/devfreq/17000000.gv11b", "", 114750000, 675750000, "nvhost_podgov")
    clock(root / "sys/class/devfreq/15340000.vic", "", 1, 2, "wmark_active")


def clock(folder, prefix, low, high, governor):
    write(folder / f"{prefix}min_freq", f"{low}\n")
    write(folder / f"{prefix}max_freq", f"{high}\n")
    write(folder / f"{prefix}governor", f"{governor}\n")


def detect_jetson(root, on="cpu"):
    return detect_device(on, {}, root / "proc", root / "sys", root)


def test_jetson_is_known_by_mode_clocks_and_governors(tmp_path):
    write_xavier(tmp_path)
    device = detect_jetson(tmp_path)
    assert device.name == "jetson-agx"
    expected = "MODE_15W, cpu 1190 MHz schedutil, gpu 115-676 MHz nvhost_podgov"
    assert device.power_mode == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write(root / "var/lib/nvpmodel/status", "pmode:0000\n"),
        lambda root: write(root / "sys/class/devfreq/17000000.gv11b/min_freq", "675750000\n"),
        lambda root: write(
            root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"
        ),
    ],
)
def test_mode_clock_or_governor_makes_another_jetson(tmp_path, change):
    write_xavier(tmp_path)
    before = detect_jetson(tmp_path).power_mode
    change(tmp_path)
    assert detect_jetson(tmp_path).power_mode != before


def test_jetson_has_one_gpu_that_needs_no_nvml(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    write_xavier(tmp_path)
    gpu, processor = (detect_jetson(tmp_path, on) for on in ("cuda:0", "cpu"))
    assert (gpu.name, gpu.processor) == ("jetson-agx-gpu", "Jetson-AGX GPU")
    assert (gpu.power_mode, gpu.memory_bytes) == (processor.power_mode, 32682416 * 1024)
    assert find_gpu("cuda:0", {}, tmp_path / "proc") is None
    with pytest.raises(MissingError, match="one GPU"):
        detect_jetson(tmp_path, "cuda:1")


def test_jetson_without_the_files_of_its_mode_is_still_a_device(tmp_path):
    write_xavier(tmp_path, mode="")
    for path in tmp_path.glob("sys/**/*_freq"):
        path.unlink()
    assert detect_jetson(tmp_path).power_mode == ""
    write(tmp_path / "var/lib/nvpmodel/status", "pmode:0007\n")
    assert detect_jetson(tmp_path).power_mode == "nvpmodel 7"


@pytest.mark.parametrize(
    ("line", "has_bf16"),
    [
        ("flags\t\t: fpu avx2 avx512_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx2", False),
        ("", False),
    ],
)
def test_products_of_bf16_are_found_in_the_flags(tmp_path, line, has_bf16):
    write(tmp_path / "cpuinfo", f"processor\t: 0\n{line}\n")
    assert multiplies_bf16(tmp_path) is has_bf16


# ---------------------------------------------------------------------------------------------
# GPUs


def test_gpu_is_read_from_nvml(nvml, monkeypatch):
    device = detect_device("cuda:1", environ={})
    assert (device.name, device.processor) == ("nvidia-h200", "NVIDIA H200")
    assert device.memory_bytes == 150_000_000_001
    assert (device.driver, device.power_mode) == ("580.159.04", "limit 700W")
    assert device.unit and device.unit != detect_device("cuda:0", environ={}).unit
    monkeypatch.setattr(nvml, "nvmlDeviceGetEnforcedPowerLimit", nvml.fail)
    assert detect_device("cuda", environ={}).power_mode == ""
    # Older bindings return bytes.
    monkeypatch.setattr(nvml, "NAMES", [b"NVIDIA H200", b"NVIDIA H200"])
    assert detect_device("cuda", environ={}).processor == "NVIDIA H200"


@given(st.lists(st.integers(0, 15), min_size=1, unique=True), st.data())
def test_cuda_index_counts_visible_devices(shown, data):
    index = data.draw(st.integers(0, len(shown) - 1))
    environ = {"CUDA_VISIBLE_DEVICES": ", ".join(map(str, shown))}
    assert visible_gpu(index, environ) == str(shown[index])
    assert visible_gpu(index, {}) == str(index)


@pytest.mark.parametrize("shown", ["", "-1", "none", "-1,0", "1,-1,0", "1,,0"])
def test_hidden_gpu_is_missing(shown):
    with pytest.raises(MissingError, match="CUDA_VISIBLE_DEVICES"):
        visible_gpu(1, {"CUDA_VISIBLE_DEVICES": shown})


@pytest.mark.parametrize(
    ("on", "shown", "number"),
    [
        ("cpu", None, None),
        ("cuda:1", None, 1),
        ("cuda:0", "1", 1),
        ("cuda:1", "1,0", 0),
        ("cuda:0", "GPU-1a2b3c4d-0000-1111-2222-333344445555", 1),
        ("cuda:0", "GPU-1a2b", 1),
        ("cuda:0", "MIG-77777777-0000-0000-0000-000000000000", 1),
        ("cuda:0", "MIG-GPU-1a2b3c4d-0000-1111-2222-333344445555/7/0", 1),
    ],
)
def test_find_gpu_returns_the_uuid(nvml, monkeypatch, on, shown, number):
    monkeypatch.setattr(nvml, "MIG_MODES", [0, 1])
    environ = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert find_gpu(on, environ) == (None if number is None else nvml.UUIDS[number])


SLICE = "MIG-77777777-0000-0000-0000-000000000000"
OTHER_SLICE = "MIG-88888888-0000-0000-0000-000000000000"
OLD_SLICE = "MIG-GPU-1a2b3c4d-0000-1111-2222-333344445555"


def detect_shown(nvml, shown):
    return detect_device("cuda:0", environ={"CUDA_VISIBLE_DEVICES": shown})


def test_slice_of_a_gpu_is_a_device_of_its_own(nvml, monkeypatch):
    whole = detect_shown(nvml, "1")
    monkeypatch.setattr(nvml, "MIG_MODES", [0, 1])
    one, other = (detect_shown(nvml, shown) for shown in (SLICE, OTHER_SLICE))
    assert (one.name, one.processor) == ("nvidia-h200-mig-1g-18gb", "NVIDIA H200 MIG 1g.18gb")
    assert one.memory_bytes == 19_000_000_000
    keys = {Profile(one, "torch", "gpu", "measured").key for one in (whole, one, other)}
    assert len(keys) == 3
    assert one.unit == other.unit == whole.unit, "the physical GPU is the unit"


@pytest.mark.parametrize(("shown", "number"), [(f"{OLD_SLICE}/9/0", 9), ("1", 7), ("GPU-1a2b", 7)])
def test_slice_is_found_however_it_is_shown(nvml, monkeypatch, shown, number):
    monkeypatch.setattr(nvml, "MIG_MODES", [0, 1])
    assert detect_shown(nvml, shown).processor == nvml.MIG_NAMES[number]


def test_slice_is_named_by_its_sizes_where_the_driver_does_not(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "MIG_MODES", [0, 1])
    monkeypatch.setattr(nvml, "MIG_NAMES", dict.fromkeys((7, 9), "NVIDIA H200"))
    assert detect_shown(nvml, SLICE).processor == "NVIDIA H200 MIG 1g.18gb"
    assert detect_shown(nvml, OTHER_SLICE).processor == "NVIDIA H200 MIG 3g.54gb"


def test_gpu_that_cannot_be_split_is_whole(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "nvmlDeviceGetMigMode", nvml.fail)
    assert detect_shown(nvml, "1").processor == "NVIDIA H200"


@pytest.mark.parametrize(
    "shown", ["2", "GPU-ffff", "GPU-", "MIG-1", "MIG-GPU-ffff/7/0", f"{OLD_SLICE}/1/0"]
)
def test_gpu_unknown_to_nvml_is_missing(nvml, shown):
    with pytest.raises(MissingError, match=r"cuda:0 (was not found|does not respond)"):
        find_gpu("cuda:0", {"CUDA_VISIBLE_DEVICES": shown})


def test_different_gpus_need_pci_order_or_a_uuid(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "NAMES", ["NVIDIA T400", "NVIDIA H200"])
    with pytest.raises(InputError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        find_gpu("cuda:0", {})
    assert find_gpu("cuda:0", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == nvml.UUIDS[0]
    assert find_gpu("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-1a"}) == nvml.UUIDS[1]


def test_gpu_without_a_driver_or_its_package_is_missing(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "nvmlInit", nvml.fail)
    with pytest.raises(MissingError, match="use --on cpu"):
        detect_device("cuda:0")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingError, match="pip install nvidia-ml-py"):
        find_gpu("cuda:0")
