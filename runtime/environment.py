"""What a run's figures depend on besides the run itself: software, processor, BLAS, precision settings, state."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from runtime.backend import prepare
from runtime.cores import usable_processors
from runtime.machine_state import read_state
from telemetry import roundscope_version
from telemetry.records import Environment

PRECISION_VARIABLES = (
    "MLX_ENABLE_TF32",
    "MLX_DISABLE_COMPILE",
    "MLX_METAL_GPU_ARCH",
    "NVIDIA_TF32_OVERRIDE",
    "OPENBLAS_CORETYPE",
)
"""Those that can change a result's last bits: reduced precision, fused kernels, and which kernels are chosen."""


def describe() -> Environment:
    """The environment of this process as plain scalars. Prepares the BLAS and imports MLX."""
    backend = prepare()
    return Environment(
        roundscope_version=roundscope_version(),
        python_version=platform.python_version(),
        mlx_version=version("mlx"),
        mlx_lm_version=_version_or_none("mlx-lm"),
        os=_system(),
        machine=platform.machine(),
        host=socket.gethostname(),
        cpu=_device_name("cpu"),
        cores=usable_processors(),
        device=_device(),
        blas=backend.blas,
        blas_version=backend.version,
        blas_threads=backend.threads,
        precision={name: os.environ[name] for name in PRECISION_VARIABLES if name in os.environ},
        **asdict(read_state()),
    )


def describe_machine() -> dict[str, Any]:
    """The same for files that are passed on: plain values, without the machine's name and its load at the moment."""
    found: dict[str, Any] = msgspec.to_builtins(describe())
    return {name: value for name, value in found.items() if name not in ("host", "load1")}


def _version_or_none(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, {platform.system()} {platform.release()}"


def _device() -> str:
    """MLX's default device, with the chip's name where it is a GPU."""
    import mlx.core as mx

    kind = mx.default_device().type.name
    return kind if kind == "cpu" else f"{kind} ({_device_name(kind)})"


def _device_name(kind: str) -> str:
    """What MLX calls the device: the processor's brand, or just its architecture where its system tells no more."""
    import mlx.core as mx

    return str(mx.device_info(mx.DeviceType[kind]).get("device_name", "unknown"))
