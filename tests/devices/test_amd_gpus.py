"""AMD GPUs in the files of their driver.

Nodes follow kfd_topology.c of Linux and topology.c of ROCm/ROCR-Runtime; the files of a card follow
https://docs.kernel.org/gpu/amdgpu/driver-misc.html, and its power limit, in µW,
https://docs.kernel.org/gpu/amdgpu/thermal.html.
"""

import pytest

from joulecast.devices.detect import detect_device, find_gpu, has_amd_gpus, list_amd_gpus
from joulecast.meters import METERS, MeterSpec, make_meter
from joulecast.system.errors import MissingError

CPU_NODE = "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\ndrm_render_minor 0\n"


@pytest.fixture
def system(tmp_path):
    """Return a /sys with a processor and two GPUs, of which one has no product name."""
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    write(nodes / "0/properties", CPU_NODE)
    # Numbers, not texts: node 10 comes after node 2.
    add_gpu(tmp_path, 2, 129, 90402, 7788, name="AMD Instinct MI300X", vram=206_141_652_992)
    add_gpu(tmp_path, 10, 128, 110000, 0, vram=25_753_026_560, cap=327_000_000)
    write(tmp_path / "module/amdgpu/version", "6.12.12\n")
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_gpu(system, node, minor, version, unique_id, name="", vram=0, cap=750_000_000):
    write(
        system / f"class/kfd/kfd/topology/nodes/{node}/properties",
        f"cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndrm_render_minor {minor}\n"
        f"gfx_target_version {version}\nunique_id {unique_id}\n",
    )
    card = system / f"class/drm/renderD{minor}/device"
    if name:
        write(card / "product_name", f"{name}\n")
    write(card / "mem_info_vram_total", f"{vram}\n")
    write(card / "hwmon/hwmon3/power1_cap", f"{cap}\n")


def test_gpus_come_in_the_order_of_their_nodes(system):
    found = [(one.processor, one.memory_bytes, one.power_mode) for one in list_amd_gpus(system, {})]
    assert found == [
        ("AMD Instinct MI300X", 206_141_652_992, "limit 750W"),
        ("AMD gfx1100", 25_753_026_560, "limit 327W"),
    ]


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, ["AMD gfx1100"]),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, ["AMD gfx1100", "AMD Instinct MI300X"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, ["AMD gfx1100"]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, ["AMD Instinct MI300X"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_only_visible_gpus_are_listed(system, environ, names):
    assert [gpu.processor for gpu in list_amd_gpus(system, environ)] == names


def test_machine_without_rocm_has_none(tmp_path):
    assert list_amd_gpus(tmp_path, {}) == []
    assert not has_amd_gpus(tmp_path, tmp_path)


def test_cuda_is_an_amd_gpu_where_there_is_no_other(system, tmp_path):
    proc = tmp_path / "proc"
    device = detect_device("cuda:0", {}, proc, system)
    assert (device.name, device.processor) == ("amd-instinct-mi300x", "AMD Instinct MI300X")
    assert (device.memory_bytes, device.driver) == (206_141_652_992, "6.12.12")
    assert device.power_mode == "limit 750W"
    assert device.unit and "7788" not in device.unit
    assert detect_device("cuda:1", {}, proc, system).unit == ""
    assert find_gpu("cuda:0", {}, proc, system) is None
    with pytest.raises(MissingError, match=r"cuda:2 was not found: ROCm shows 2 GPUs"):
        detect_device("cuda:2", {}, proc, system)


def test_gpus_of_nvidia_come_first(system, tmp_path):
    assert has_amd_gpus(tmp_path / "proc", system)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert not has_amd_gpus(tmp_path / "proc", system)


def test_automatic_meter_of_an_amd_gpu_is_amd(monkeypatch):
    requests = []
    spec = MeterSpec("amd[:INDEX]", lambda request: requests.append(request) or make_meter("later"))
    monkeypatch.setitem(METERS, "amd", spec)
    monkeypatch.setattr("joulecast.meters.has_amd_gpus", lambda: True)
    make_meter("auto", on="cuda:1")
    assert [request.on for request in requests] == ["cuda:1"]
    assert make_meter("auto").name != "amd"
