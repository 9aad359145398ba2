"""What the GPU says of itself while it is measured: clock, power, temperature and reasons for running slower (NVML)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Bits of nvmlClocksThrottleReasons. The power cap's is noted but spoils no sample: large products always run there.
REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake",
}
SPOILING = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Reading:
    """At one moment. `reasons`: bits of REASONS and others."""

    sm_mhz: int
    power_w: float
    temperature_c: int
    reasons: int

    @property
    def spoiled(self) -> bool:
        """Whether samples taken now say nothing of an undisturbed GPU."""
        return bool(self.reasons & SPOILING)


class Clocks:
    """Of the device with this UUID (hexadecimal, as the CUDA driver has it). Reads nothing where NVML is missing."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = None
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByUUID(nvml_uuid(uuid))
            self._nvml = nvml
        except Exception:  # noqa: BLE001 - pynvml raises its own kinds, and none stops a measurement
            self._nvml = None

    def read(self) -> Reading | None:
        """None where NVML does not say."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            return Reading(
                int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)),
                nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3,
                int(nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)),
                int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)))
        except (nvml.NVMLError, AttributeError):  # the second: a version that has renamed a call
            return None


def nvml_uuid(uuid: str) -> str:
    """NVML's way to write a UUID: `GPU-` and groups of 8, 4, 4, 4 and 12 digits."""
    return "GPU-" + "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))


def summary(readings: Sequence[Reading]) -> dict[str, str]:
    """Facts of a measurement; empty where nothing was read."""
    if not readings:
        return {}
    reasons = 0
    for reading in readings:
        reasons |= reading.reasons
    names = [name for bit, name in sorted(REASONS.items()) if reasons & bit]
    clocks = [reading.sm_mhz for reading in readings]
    return {
        "sm_mhz": f"{min(clocks)}-{max(clocks)}",
        "power_w": f"{max(reading.power_w for reading in readings):.0f}",
        "temperature_c": str(max(reading.temperature_c for reading in readings)),
        "throttle": ", ".join(names) or "none",
    }


def power_cap_w(uuid: str) -> float:
    """The enforced power limit of a device, watts; 0 where NVML does not say."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(nvml.nvmlDeviceGetHandleByUUID(nvml_uuid(uuid)))) / 1e3
    except Exception:  # noqa: BLE001 - pynvml raises its own kinds, and none stops a measurement
        return 0.0
