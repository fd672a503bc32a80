"""Device detection: names, system files, and the GPU behind a CUDA index."""

import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_sysfs import write_files

import fake_pynvml
from joulecast.devices import detect
from joulecast.devices.detect import (
    detect_device,
    find_gpu,
    has_amd_gpus,
    make_slug,
    multiplies_bf16,
    parse_on,
    visible_gpu,
)
from joulecast.meters import METERS, MeterSpec, make_meter
from joulecast.records import Profile
from joulecast.system.errors import InputError, MissingError


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Read the files of a system without GPUs, and hide none of them."""
    monkeypatch.setattr(detect, "ROOT", tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
    return fake_pynvml


SLICE, OTHER_SLICE = fake_pynvml.MIGS
OLD_SLICE = f"MIG-{fake_pynvml.UUIDS[1]}"


@pytest.fixture
def split(nvml, monkeypatch):
    """Split the second GPU into slices."""
    monkeypatch.setattr(nvml, "MIG_MODES", [0, 1])
    return nvml


@given(st.text())
def test_slug_is_safe_in_files_and_commands(name):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", make_slug(name))


def test_slugs_of_known_processors():
    slugs = {
        "NVIDIA H200": "nvidia-h200",
        "AMD EPYC 9R14 96-Core Processor": "amd-epyc-9r14",
        "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz": "intel-xeon-e5-2680-v4",
        "AMD Ryzen 7 5800H with Radeon Graphics": "amd-ryzen-7-5800h",
        "Intel(R) Xeon(R) Processor": "intel-xeon",
    }
    assert {name: make_slug(name) for name in slugs} == slugs


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


# -- processors ---------------------------------------------------------------------------------


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_processor_is_read_from_the_system(root):
    cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14 96-Core Processor\n"
    write(root / "proc/cpuinfo", cpuinfo * 2)
    write(root / "proc/meminfo", "MemFree: 1 kB\nMemTotal:       24682416 kB\n")
    write(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    device = detect_device("cpu")
    assert (device.name, device.power_mode) == ("amd-epyc-9r14", "performance")
    assert device.processor == "AMD EPYC 9R14 96-Core Processor"
    assert device.memory_bytes == 24682416 * 1024
    assert device.driver == "", "a new kernel is not a new device"


def test_board_is_named_by_its_device_tree(root):
    write(root / "proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 62.50\nCPU part\t: 0x004\n")
    write(root / "proc/device-tree/model", "NVIDIA Jetson Xavier NX\0")
    assert detect_device("cpu").name == "nvidia-jetson-xavier-nx"


def test_system_without_information_still_has_a_name(monkeypatch):
    device = detect_device("cpu")
    assert device.name and (device.memory_bytes, device.power_mode) == (0, "")
    monkeypatch.setattr(detect, "ROOT", Path("/"))
    here = detect_device("cpu")
    assert here.name and here.memory_bytes > 0


# Jetson boards: files as on a Jetson AGX Xavier with JetPack 5. Power modes are named in
# /etc/nvpmodel.conf (Jetson Linux Developer Guide, "Power Management"), the current one is in
# /var/lib/nvpmodel/status.


def write_xavier(root, mode="pmode:0002 fmode:quiet\n"):
    soc = "nvidia,p2822-0000+p2888-0004\0nvidia,tegra194\0"
    write_files(root / "proc/device-tree", model="Jetson-AGX\0", compatible=soc)
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
    shown = {"min_freq": low, "max_freq": high, "governor": governor}
    write_files(folder, **{f"{prefix}{name}": value for name, value in shown.items()})


def test_jetson_is_known_by_mode_clocks_and_governors(root):
    write_xavier(root)
    device = detect_device("cpu")
    expected = "MODE_15W, cpu 1190 MHz schedutil, gpu 115-676 MHz nvhost_podgov"
    assert (device.name, device.power_mode) == ("jetson-agx", expected)
    for file, text, shown in (
        ("var/lib/nvpmodel/status", "pmode:0000", "MAXN, "),
        ("sys/class/devfreq/17000000.gv11b/min_freq", "675750000", "gpu 676 MHz nvhost"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance", "MHz performance"),
    ):
        write(root / file, f"{text}\n")
        assert shown in detect_device("cpu").power_mode


def test_jetson_has_one_gpu_that_needs_no_nvml(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    write_xavier(root)
    gpu, processor = map(detect_device, ("cuda:0", "cpu"))
    assert (gpu.name, gpu.processor) == ("jetson-agx-gpu", "Jetson-AGX GPU")
    assert (gpu.power_mode, gpu.memory_bytes) == (processor.power_mode, 32682416 * 1024)
    assert find_gpu("cuda:0") is None
    with pytest.raises(MissingError, match="one GPU"):
        detect_device("cuda:1")


def test_jetson_without_the_files_of_its_mode_is_still_a_device(root):
    write_xavier(root, mode="")
    for path in root.glob("sys/**/*_freq"):
        path.unlink()
    assert detect_device("cpu").power_mode == ""
    write(root / "var/lib/nvpmodel/status", "pmode:0007\n")
    assert detect_device("cpu").power_mode == "nvpmodel 7"


def test_products_of_bf16_are_found_in_the_flags(root):
    with_bf16 = ["flags\t\t: fpu avx2 avx512_bf16", "Features\t: fp asimd bf16"]
    for line in (*with_bf16, "flags\t\t: fpu avx2", ""):
        write(root / "proc/cpuinfo", f"processor\t: 0\n{line}\n")
        assert multiplies_bf16() is (line in with_bf16)


# -- GPUs ---------------------------------------------------------------------------------------


def test_gpu_is_read_from_nvml(nvml, monkeypatch):
    device = detect_device("cuda:1")
    assert (device.name, device.processor) == ("nvidia-h200", "NVIDIA H200")
    assert device.memory_bytes == 150_000_000_001
    assert (device.driver, device.power_mode) == ("580.159.04", "limit 700W")
    assert device.unit and device.unit != detect_device("cuda:0").unit
    monkeypatch.setattr(nvml, "nvmlDeviceGetEnforcedPowerLimit", nvml.fail)
    assert detect_device("cuda").power_mode == ""
    # Older bindings return bytes.
    monkeypatch.setattr(nvml, "NAMES", [b"NVIDIA H200", b"NVIDIA H200"])
    assert detect_device("cuda").processor == "NVIDIA H200"


@given(st.lists(st.integers(0, 15), min_size=1, unique=True), st.data())
def test_cuda_index_counts_visible_devices(shown, data):
    index = data.draw(st.integers(0, len(shown) - 1))
    assert visible_gpu(index) == str(index)
    with patch.dict("os.environ", CUDA_VISIBLE_DEVICES=", ".join(map(str, shown))):
        assert visible_gpu(index) == str(shown[index])


@pytest.mark.parametrize("shown", ["", "-1", "none", "-1,0", "1,-1,0", "1,,0"])
def test_hidden_gpu_is_missing(shown, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(MissingError, match="CUDA_VISIBLE_DEVICES"):
        visible_gpu(1)


@pytest.mark.parametrize(
    ("on", "shown", "number"),
    [
        ("cuda:1", "0,1", 1),
        ("cuda:0", "1", 1),
        ("cuda:1", "1,0", 0),
        *(("cuda:0", shown, 1) for shown in (fake_pynvml.UUIDS[1], "GPU-1a2b")),
        *(("cuda:0", shown, 1) for shown in (SLICE, f"{OLD_SLICE}/7/0")),
    ],
)
def test_find_gpu_returns_the_uuid(split, monkeypatch, on, shown, number):
    assert (find_gpu("cpu"), find_gpu("cuda:1")) == (None, split.UUIDS[1])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert find_gpu(on) == split.UUIDS[number]


def detect_shown(shown):
    with patch.dict("os.environ", CUDA_VISIBLE_DEVICES=shown):
        return detect_device("cuda:0")


def test_slice_of_a_gpu_is_a_device_of_its_own(nvml, monkeypatch):
    whole = detect_shown("1")
    monkeypatch.setattr(nvml, "MIG_MODES", [0, 1])
    one, other = (detect_shown(shown) for shown in (SLICE, OTHER_SLICE))
    assert (one.name, one.processor) == ("nvidia-h200-mig-1g-18gb", "NVIDIA H200 MIG 1g.18gb")
    assert one.memory_bytes == 19_000_000_000
    keys = {Profile(one, "torch", "gpu", "measured").key for one in (whole, one, other)}
    assert len(keys) == 3
    assert one.unit == other.unit == whole.unit, "the physical GPU is the unit"


@pytest.mark.parametrize(("shown", "number"), [(f"{OLD_SLICE}/9/0", 9), ("1", 7), ("GPU-1a2b", 7)])
def test_slice_is_found_however_it_is_shown(split, shown, number):
    assert detect_shown(shown).processor == split.MIG_NAMES[number]


def test_slice_is_named_by_its_sizes_where_the_driver_does_not(split, monkeypatch):
    monkeypatch.setattr(split, "MIG_NAMES", dict.fromkeys((7, 9), "NVIDIA H200"))
    assert detect_shown(SLICE).processor == "NVIDIA H200 MIG 1g.18gb"
    assert detect_shown(OTHER_SLICE).processor == "NVIDIA H200 MIG 3g.54gb"
    # A GPU that cannot be split is whole.
    monkeypatch.setattr(split, "nvmlDeviceGetMigMode", split.fail)
    assert detect_shown("1").processor == "NVIDIA H200"


@pytest.mark.parametrize(
    "shown", ["2", "GPU-ffff", "GPU-", "MIG-1", "MIG-GPU-ffff/7/0", f"{OLD_SLICE}/1/0"]
)
def test_gpu_unknown_to_nvml_is_missing(nvml, shown):
    with pytest.raises(MissingError, match="cuda:0 was not found"):
        detect_shown(shown)


def test_different_gpus_need_pci_order_or_a_uuid(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "NAMES", ["NVIDIA T400", "NVIDIA H200"])
    with pytest.raises(InputError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        find_gpu("cuda:0")
    assert detect_shown("GPU-1a").processor == "NVIDIA H200"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert find_gpu("cuda:0") == nvml.UUIDS[0]


def test_gpu_without_a_driver_or_its_package_is_missing(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "nvmlInit", nvml.fail)
    with pytest.raises(MissingError, match="cuda:0 was not found"):
        detect_device("cuda:0")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingError, match="pip install nvidia-ml-py"):
        find_gpu("cuda:0")


# AMD GPUs in the files of their driver. Nodes follow kfd_topology.c of Linux and topology.c of
# ROCm/ROCR-Runtime; the files of a card follow
# https://docs.kernel.org/gpu/amdgpu/driver-misc.html, and its power limit, in µW,
# https://docs.kernel.org/gpu/amdgpu/thermal.html.

CPU_NODE = "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\ndrm_render_minor 0\n"


@pytest.fixture
def amd_system(root):
    """Add a processor and two GPUs, of which one has no product name."""
    system = root / "sys"
    write(system / "class/kfd/kfd/topology/nodes/0/properties", CPU_NODE)
    # Numbers, not texts: node 10 comes after node 2.
    add_gpu(system, 2, 129, 90402, 7788, name="AMD Instinct MI300X", vram=206_141_652_992)
    add_gpu(system, 10, 128, 110000, 0, vram=25_753_026_560, cap=327_000_000)
    write(system / "module/amdgpu/version", "6.12.12\n")


def add_gpu(system, node, minor, version, unique_id, name="", vram=0, cap=750_000_000):
    write(
        system / f"class/kfd/kfd/topology/nodes/{node}/properties",
        f"cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndrm_render_minor {minor}\n"
        f"gfx_target_version {version}\nunique_id {unique_id}\n",
    )
    card = system / f"class/drm/renderD{minor}/device"
    write_files(card, mem_info_vram_total=vram, **{"product_name": name} if name else {})
    write_files(card / "hwmon/hwmon3", power1_cap=cap)


MI300X, RADEON = "AMD Instinct MI300X", "AMD gfx1100"


def test_cuda_is_an_amd_gpu_in_the_order_of_nodes_where_there_is_no_other(amd_system, root):
    found = [detect_device(f"cuda:{index}") for index in range(2)]
    assert [one.processor for one in found] == [MI300X, RADEON]
    assert [one.memory_bytes for one in found] == [206_141_652_992, 25_753_026_560]
    assert [one.power_mode for one in found] == ["limit 750W", "limit 327W"]
    assert (found[0].name, found[0].driver) == ("amd-instinct-mi300x", "6.12.12")
    assert found[0].unit and "7788" not in found[0].unit and found[1].unit == ""
    assert find_gpu("cuda:0") is None
    with pytest.raises(MissingError, match="cuda:2 was not found: ROCm shows 2 GPUs"):
        detect_device("cuda:2")
    assert has_amd_gpus()
    (root / "proc/driver/nvidia").mkdir(parents=True)
    assert not has_amd_gpus()


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, [RADEON]),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, [RADEON, MI300X]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, [RADEON]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, [MI300X]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_only_visible_gpus_are_devices(amd_system, monkeypatch, environ, names):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = [detect_device(f"cuda:{index}").processor for index in range(len(names))]
    assert found == names
    with pytest.raises(MissingError, match=f"shows {len(names)} GPUs"):
        detect_device(f"cuda:{len(names)}")


def test_automatic_meter_of_an_amd_gpu_is_amd(amd_system, monkeypatch):
    requests = []
    spec = MeterSpec("amd[:INDEX]", lambda request: requests.append(request) or make_meter("later"))
    monkeypatch.setitem(METERS, "amd", spec)
    make_meter("auto", on="cuda:1")
    assert [request.on for request in requests] == ["cuda:1"]
    assert make_meter("auto").name != "amd"
