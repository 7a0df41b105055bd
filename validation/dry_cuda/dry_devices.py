"""The devices that the dry device can stand for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schedsim.errors import SchedsimError, did_you_mean

MIB, KIB = 2**20, 2**10


@dataclass(frozen=True)
class DryDevice:
    """The properties of a CUDA device that PyTorch asks for.

    Attributes
    ----------
    key
        As in ``--device``.
    name
        As ``torch.cuda.get_device_name`` gives it.
    capability
        Compute capability: it selects kernels, and workspaces of the matrix libraries.
    memory_bytes
        The total of ``cudaMemGetInfo``: less than the advertised size, because the driver takes a
        part.
    num_sms, threads_per_sm, blocks_per_sm, shared_per_block_bytes, shared_per_sm_bytes
        From the tables of the CUDA programming guide by compute capability.
    l2_bytes, bus_bits
        From the data sheets.
    roofline
        The device of ``schedsim.workloads.devices`` whose peaks give times.
    """

    key: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    num_sms: int
    l2_bytes: int
    bus_bits: int
    roofline: str
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    shared_per_block_bytes: int = 227 * KIB
    shared_per_sm_bytes: int = 228 * KIB

    def with_memory(self, memory_bytes: int) -> DryDevice:
        """The same device with another amount of memory."""
        return replace(self, memory_bytes=memory_bytes)

    def settings(self) -> dict[str, str]:
        """The environment variables that the library reads."""
        numbers = {
            "MAJOR": self.capability[0],
            "MINOR": self.capability[1],
            "SMS": self.num_sms,
            "MEMORY": self.memory_bytes,
            "SHARED_PER_BLOCK": self.shared_per_block_bytes,
            "SHARED_PER_SM": self.shared_per_sm_bytes,
            "THREADS_PER_SM": self.threads_per_sm,
            "BLOCKS_PER_SM": self.blocks_per_sm,
            "L2": self.l2_bytes,
            "BUS_BITS": self.bus_bits,
        }
        found = {f"SCHEDSIM_DRY_{name}": str(number) for name, number in numbers.items()}
        return {"SCHEDSIM_DRY_NAME": f"dry {self.name}", **found}


DEVICES: dict[str, DryDevice] = {
    device.key: device
    for device in (
        DryDevice(
            "a100-80gb",
            "NVIDIA A100-SXM4-80GB",
            (8, 0),
            85_094_105_088,
            108,
            40 * MIB,
            5120,
            "a100-80gb",
            shared_per_block_bytes=163 * KIB,
            shared_per_sm_bytes=164 * KIB,
        ),
        DryDevice(
            "h100-80gb",
            "NVIDIA H100 80GB HBM3",
            (9, 0),
            85_017_493_504,
            132,
            50 * MIB,
            5120,
            "h100",
        ),
        DryDevice("h200", "NVIDIA H200", (9, 0), 150_754_820_096, 132, 60 * MIB, 6144, "h200"),
        DryDevice(
            "rtx4090",
            "NVIDIA GeForce RTX 4090",
            (8, 9),
            25_383_337_984,
            128,
            72 * MIB,
            384,
            "rtx4090",
            threads_per_sm=1536,
            blocks_per_sm=24,
            shared_per_block_bytes=99 * KIB,
            shared_per_sm_bytes=100 * KIB,
        ),
    )
}


def get_dry_device(key: str) -> DryDevice:
    """The device called `key`.

    Raises
    ------
    SchedsimError
        There is none; the hint names the nearest, or all.

    Examples
    --------
    >>> get_dry_device("h200").capability
    (9, 0)
    """
    if key not in DEVICES:
        raise SchedsimError(
            f"there is no dry device {key!r}",
            hint=did_you_mean(key, DEVICES, f"one of {', '.join(DEVICES)}"),
        )
    return DEVICES[key]
