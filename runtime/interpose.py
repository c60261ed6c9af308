"""Put functions of one loaded library in front of the same names in every library that is loaded later.

The dynamic linker looks a name up in the globally loaded objects first, in the order they came. So a shared object
that says "`cblas_sgemm` is at address X" and is loaded globally before MLX decides which `cblas_sgemm` MLX calls.
Such an object needs no code: ELF symbols may be absolute (`SHN_ABS`), and glibc takes their value as it stands since
2.28 (MLX's wheels need 2.35). It is written here, about half a kilobyte, into an anonymous memory file, so that
nothing is left on disk and neither a compiler nor a writable folder is needed. Names that a package exports under a
prefix (`scipy_cblas_sgemm`) can so be offered under their own, and nothing else of their library is put in front.

Layout after the System V ABI, chapters 4 and 5 (ELF header, program headers, symbol and hash tables, dynamic section).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping
from pathlib import Path

_EHDR, _PHDR, _SYM, _DYN = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<IBBHQQ", "<QQ"
_ET_DYN, _SHN_ABS, _GLOBAL_FUNCTION = 3, 0xFFF1, 0x12
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK, _READ_WRITE = 1, 2, 0x6474E551, 6
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11
_PAGE = 0x10000
_IDENT = b"\x7fELF\x02\x01\x01"
"""64-bit, little-endian, version 1: the only kind of machine that MLX's Linux wheels exist for."""


def visible_address(name: str) -> int | None:
    """The address that a library loaded from now on would find for `name`, or None."""
    return address_in(ctypes.CDLL(None), name)


def address_in(library: ctypes.CDLL, name: str) -> int | None:
    """The address of `name` as `library` resolves it, or None."""
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


def put_in_front(addresses: Mapping[str, int]) -> None:
    """Make libraries that are loaded from now on resolve each name to its address.

    It is tried out before it becomes global. Raises OSError where the system does not play along.
    """
    fd = os.memfd_create("roundscope-names")
    try:
        os.write(fd, build_object(addresses, machine=_machine()))
        # The descriptor stays open on success: the linker remembers objects by path, and a later file under the same
        # number would be mistaken for this one.
        path = f"/proc/self/fd/{fd}"
        _check(ctypes.CDLL(path), addresses, "private")
        _check(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), addresses, "global")
        _check(ctypes.CDLL(None), addresses, "first")
    except OSError:
        os.close(fd)
        raise


def _check(library: ctypes.CDLL, addresses: Mapping[str, int], scope: str) -> None:
    wrong = [name for name, address in addresses.items() if address_in(library, name) != address]
    if wrong:
        raise OSError(f"the dynamic linker resolves {', '.join(wrong)} elsewhere ({scope} look-up)")


def _machine() -> int:
    with Path("/proc/self/exe").open("rb") as executable:
        header = executable.read(20)
    if not header.startswith(_IDENT):
        raise OSError("only 64-bit little-endian ELF systems are supported")
    return int.from_bytes(header[18:20], "little")


def build_object(addresses: Mapping[str, int], *, machine: int) -> bytes:
    """The bytes of an ELF shared object that defines each name at its absolute address.

    `machine`: ELF's number of the processor architecture (62: x86-64, 183: aarch64).
    """
    names, offsets = b"\0", []
    for name in addresses:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    symbols = struct.pack(_SYM, 0, 0, 0, 0, 0, 0)
    for offset, address in zip(offsets, addresses.values(), strict=True):
        symbols += struct.pack(_SYM, offset, _GLOBAL_FUNCTION, 0, _SHN_ABS, address, 0)
    # One bucket, so the hash function does not matter: a chain through all symbols, ended by 0.
    chain = [0, *range(2, len(addresses) + 1), 0]
    hashes = struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1, *chain)

    header_size = struct.calcsize(_EHDR) + 3 * struct.calcsize(_PHDR)
    at_symbols = header_size
    at_names = at_symbols + len(symbols)
    at_hashes = _align(at_names + len(names))
    at_dynamic = _align(at_hashes + len(hashes))
    dynamic = b"".join(
        struct.pack(_DYN, tag, value)
        for tag, value in (
            (_DT_HASH, at_hashes),
            (_DT_STRTAB, at_names),
            (_DT_SYMTAB, at_symbols),
            (_DT_STRSZ, len(names)),
            (_DT_SYMENT, struct.calcsize(_SYM)),
            (_DT_NULL, 0),
        )
    )
    end = at_dynamic + len(dynamic)
    # fmt: off
    header = struct.pack(_EHDR, _IDENT, _ET_DYN, machine, 1, 0, struct.calcsize(_EHDR), 0, 0,
                         struct.calcsize(_EHDR), struct.calcsize(_PHDR), 3, 64, 0, 0)
    header += struct.pack(_PHDR, _PT_LOAD, _READ_WRITE, 0, 0, 0, end, end, _PAGE)
    size = len(dynamic)
    header += struct.pack(_PHDR, _PT_DYNAMIC, _READ_WRITE, at_dynamic, at_dynamic, at_dynamic, size, size, 8)
    # Without this one the linker would take it that an executable stack is wanted.
    header += struct.pack(_PHDR, _PT_GNU_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16)
    # fmt: on
    image = header + symbols + names
    image = image.ljust(at_hashes, b"\0") + hashes
    return image.ljust(at_dynamic, b"\0") + dynamic


def _align(offset: int) -> int:
    return -(-offset // 8) * 8
