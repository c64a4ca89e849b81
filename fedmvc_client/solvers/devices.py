"""Which device and number format a solver works with."""

from __future__ import annotations

import torch

from configs.errors import ConfigError

_DTYPES = {"float64": torch.float64, "float32": torch.float32}


def resolve_device(name: str) -> torch.device:
    """Turn a device name into a torch device that exists on this machine.

    Parameters
    ----------
    name : str
        ``"auto"`` (the first CUDA device if there is one, else the CPU), ``"cpu"``, ``"cuda"`` or
        ``"cuda:N"``.

    Raises
    ------
    ConfigError
        If the name is unknown or asks for a CUDA device that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or name.endswith(":"):
        raise ConfigError(
            f'device "{name}" is unknown; use "auto", "cpu", "cuda" or "cuda:N" with N = 0, 1, ...'
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f'device "{name}" was asked for but no CUDA device is available; use "cpu" or "auto"'
        )
    n_devices = torch.cuda.device_count()
    if number and int(number) >= n_devices:
        raise ConfigError(
            f'device "{name}" was asked for but this machine has {n_devices} CUDA device(s), '
            f'numbered from 0; use a smaller number or "auto"'
        )
    return torch.device(name)


def resolve_dtype(name: str) -> torch.dtype:
    """Turn ``"float64"`` or ``"float32"`` into a torch dtype.

    Raises
    ------
    ConfigError
        For any other name.
    """
    if name not in _DTYPES:
        raise ConfigError(f'dtype "{name}" is unknown; use "float64" or "float32"')
    return _DTYPES[name]
