"""Trees of Linux's sysfs as boards, GPUs and batteries show them; each cites what it follows."""

from itertools import count


def write_files(folder, **files):
    """Write files of one line, as sysfs has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


class Sysfs:
    """A /sys and a /proc, to which boards are added."""

    def __init__(self, root):
        self.system, self.proc = root / "sys", root / "proc"
        self._numbers = count()

    def set_soc(self, compatible):
        write_files(self.proc / "device-tree", compatible=compatible)
        return self

    def add_chip(self, name, device, **files):
        """Add a hwmon folder for a chip at an I2C or PCI address."""
        folder = self.system / f"class/hwmon/hwmon{next(self._numbers)}"
        target = self.system / "devices" / device
        target.mkdir(parents=True, exist_ok=True)
        write_files(folder, name=name, **files)
        (folder / "device").symlink_to(target)
        return folder

    def add_ina3221(self, device, labels, voltage_mv=5000, current_ma=1000, **files):
        """Add an INA3221 (Documentation/hwmon/ina3221.rst): in*_input in mV, curr*_input in mA.

        Sums (in7, curr4) and shunt voltages (in4 to in6, in µV) are there as well.
        """
        values = {"in7_input": 99, "in7_label": "sum of shunt voltages", "curr4_input": 99999}
        for number, label in enumerate(labels, 1):
            values[f"in{number}_label"] = label
            values[f"in{number}_input"] = voltage_mv
            values[f"curr{number}_input"] = current_ma
            values[f"in{number}_enable"] = 1
            values[f"in{number + 3}_input"] = 5000
        return self.add_chip("ina3221", device, **values | files)

    def add_iio(self, address, index, labels, power_mw=5000):
        """Add an INA3221 with NVIDIA's driver of JetPack 4.

        rail_name_*, in_power*_input in mW: Tegra Linux Driver Package Development Guide 32.7,
        "Software-Based Power Consumption Modeling".
        """
        folder = self.system / f"bus/i2c/drivers/ina3221x/{address}/iio:device{index}"
        for number, label in enumerate(labels):
            values = {f"rail_name_{number}": label, f"in_power{number}_input": power_mw}
            write_files(folder, **values)
        return folder


def add_tx2(tree):
    """Add a Jetson TX2 with JetPack 4: energymon, jetson/JetsonPowerRails.md, "quill"."""
    tree.set_soc("nvidia,quill\0nvidia,p2597-0000+p3310-1000\0nvidia,tegra186\0")
    tree.add_iio("0-0040", 0, ["VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_4V0_WIFI"], 1000)
    tree.add_iio("0-0041", 1, ["VDD_IN", "VDD_SYS_CPU", "VDD_SYS_DDR"], 7000)
    tree.add_iio("0-0042", 2, ["VDD_MUX", "VDD_5V0_IO_SYS", "VDD_3V3_SYS"], 2000)


def add_agx_xavier(tree):
    """Add a Jetson AGX Xavier: energymon, jetson/JetsonPowerRails.md, "galen"."""
    tree.set_soc("nvidia,p2822-0000+p2888-0004\0nvidia,tegra194\0")
    tree.add_ina3221("1-0040", ["GPU", "CPU", "SOC"])
    tree.add_ina3221("1-0041", ["CV", "VDDRQ", "SYS5V"])


def add_xavier_nx(tree):
    """Add a Jetson Xavier NX: energymon, jetson/JetsonPowerRails.md, "jakku"."""
    tree.set_soc("nvidia,p3509-0000+p3668-0001\0nvidia,tegra194\0")
    tree.add_ina3221("7-0040", ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"])


def add_agx_orin(tree):
    """Add a Jetson AGX Orin: arch/arm64/boot/dts/nvidia/tegra234-p3701.dtsi of Linux."""
    tree.set_soc("nvidia,p3737-0000+p3701-0000\0nvidia,p3701-0000\0nvidia,tegra234\0")
    tree.add_ina3221("1-0040", ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"])
    tree.add_ina3221("1-0041", ["NC", "VDDQ_VDD2_1V8AO", "NC"])


def add_orin_nano(tree):
    """Add a Jetson Orin Nano: arch/arm64/boot/dts/nvidia/tegra234-p3767.dtsi of Linux."""
    tree.set_soc("nvidia,p3768-0000+p3767-0003\0nvidia,p3767-0003\0nvidia,tegra234\0")
    tree.add_ina3221("1-0040", ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"])


def add_thor(tree):
    """Add a Jetson AGX Thor: https://github.com/rbonghi/jetson_stats/pull/900 and pull/750.

    An INA238 on the carrier board shows VIN in µW (Documentation/hwmon/ina238.rst).
    """
    tree.set_soc("nvidia,p4071-0000+p3834-0008\0nvidia,tegra264\0")
    tree.add_ina3221("2-0040", ["VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"])
    tree.add_chip("ina238", "2-0044", label="VIN", power1_input=23000000, in1_input=19000)


def add_ina226(tree, device="1-0045", power_uw=7_500_000, **files):
    """Add an INA226 (Documentation/hwmon/ina2xx.rst): power1_input in µW, in1_input the bus."""
    values = {"in0_input": 3, "in1_input": 5000, "curr1_input": 1500, "update_interval": 36}
    return tree.add_chip("ina226", device, power1_input=power_uw, **values | files)


def add_intel_gpu(tree, driver="xe", device="0000:03:00.0", **files):
    """Add an Intel GPU: Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon (and -i915-hwmon)."""
    return tree.add_chip(driver, device, energy1_input=0, power1_max=120000000, **files)


class Battery:
    """A battery in a power_supply folder that gives constant power and updates at times.

    Documentation/ABI/testing/sysfs-class-power of Linux: µW, µA, µV, µWh, µAh.
    """

    VOLTAGE_V = 11.4

    def __init__(self, root, clock, shows, name="BAT0", every_s=2.0, power_w=12.0):
        self.folder, self.clock, self.shows, self.every_s = root / name, clock, shows, every_s
        self.power_w, self.left_j, self.count, self.updated_s = power_w, 150e3, 0, clock.now()
        write_files(self.folder, type="Battery", present=1, status="Discharging")
        self.show()
        clock.hooks.append(self.update)

    def update(self):
        passed_s = self.clock.now() - self.updated_s
        if passed_s >= self.every_s:
            self.updated_s = self.clock.now()
            self.left_j -= passed_s * self.power_w
            self.show()

    def stop(self):
        self.clock.hooks.remove(self.update)

    def show(self):
        # Gauges are noisy: no two numbers in a row are the same.
        self.count += 1
        noise = 1 + (-1) ** self.count * 1e-3
        numbers = {
            "power": self.power_w * noise * 1e6,
            "current": -self.power_w / self.VOLTAGE_V * noise * 1e6,
            "voltage": self.VOLTAGE_V * 1e6,
            "energy": self.left_j / 3.6e-3,
            "charge": self.left_j / self.VOLTAGE_V / 3.6e-3,
        }
        write_files(self.folder, **{f"{one}_now": int(numbers[one]) for one in self.shows})


def add_charger(root, online=1, name="AC", type_="Mains"):
    """Add a charger, as Documentation/ABI/testing/sysfs-class-power describes it."""
    return write_files(root / name, type=type_, online=online)


class PowercapTree:
    """A powercap folder, whose counters count once they follow a clock."""

    def __init__(self, root, range_uj=262_143_328_850):
        self.root, self.range_uj = root, range_uj
        self.counts_uj, self.powers_w = {}, {}

    def add(self, folder, name, power_w=0.0):
        write_files(self.root / folder, name=name, max_energy_range_uj=self.range_uj)
        self.powers_w[folder] = power_w
        return self.set(folder, 0.0)

    def set(self, folder, count_uj):
        self.counts_uj[folder] = count_uj
        write_files(self.root / folder, energy_uj=int(count_uj) % self.range_uj)
        return self

    def follow(self, clock):
        self.clock, self.counted_s = clock, clock.now()
        clock.hooks.append(self.count)
        return self

    def count(self):
        passed_s, self.counted_s = self.clock.now() - self.counted_s, self.clock.now()
        for folder, power_w in self.powers_w.items():
            self.set(folder, self.counts_uj[folder] + power_w * passed_s * 1e6)
