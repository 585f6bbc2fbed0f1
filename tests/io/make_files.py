#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/io/files: npz, npy and PyTorch files made by numpy and torch, what safetensors' own library
says is in them (NAME.expected.safetensors), and bad files with a list of what is wrong with each
(cases.txt). Needs numpy, torch, safetensors."""
import collections
import io
import os
import pathlib
import pickle
import struct
import warnings
import zipfile

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

HERE = pathlib.Path(__file__).resolve().parent / "files"
warnings.filterwarnings("ignore")
cases = []


def bad(name, data, code, part):
    if data is not None:
        (HERE / name).write_bytes(data)
    cases.append(f"{name}|{code}|{part}")


def numpy_files():
    rng = np.random.default_rng(1)
    arrays = {f"t.{d}": (rng.integers(0, 100, (2, 3)) - (20 if d[0] == "i" else 0)).astype(d)
              for d in "u1 u2 u4 u8 i1 i2 i4 i8".split()}
    arrays |= {f"t.{d}": rng.standard_normal((3, 5)).astype(d) for d in "f2 f4 f8".split()}
    arrays |= {"bool": np.array([True, False, True]), "scalar": np.float32(2.5), "empty": np.zeros((0, 4), "f4"),
               "deep/name": np.arange(64, dtype="i4").reshape(2, 2, 2, 2, 2, 2),
               "fortran2": np.asfortranarray(rng.standard_normal((4, 7))),
               "fortran3": np.asfortranarray(rng.integers(0, 9, (2, 3, 4)).astype("i2")),
               "fortran1": np.asfortranarray(np.arange(5, dtype="u1"))}
    plain = {k: np.array(v, order="C", ndmin=np.ndim(v)) for k, v in arrays.items()}
    np.savez(HERE / "all.npz", **arrays)
    safetensors.numpy.save_file(plain, HERE / "all.npz.expected.safetensors")
    np.savez_compressed(HERE / "packed.npz", **arrays, zeros=np.zeros((40, 100), "f4"))
    safetensors.numpy.save_file(plain | {"zeros": np.zeros((40, 100), "f4")},
                                HERE / "packed.npz.expected.safetensors")
    np.savez(HERE / "none.npz")
    np.savez(HERE / "one.npz", a=np.float32([1.5]))
    for name, array, version in [("v1.npy", arrays["t.f4"], (1, 0)), ("v2.npy", arrays["t.i8"], (2, 0)),
                                 ("v3.npy", arrays["fortran2"], (3, 0))]:
        with open(HERE / name, "wb") as f:
            np.lib.format.write_array(f, array, version)
        safetensors.numpy.save_file({name[:-4]: np.ascontiguousarray(array)},
                                    HERE / f"{name}.expected.safetensors")


def torch_files():
    torch.manual_seed(1)
    base = torch.randn(6, 4)
    state = collections.OrderedDict(
        {"f32": base, "f64": torch.randn(2, 3, dtype=torch.float64), "f16": torch.randn(3).half(),
         "bf16": torch.randn(3, 2).bfloat16(), "i64": torch.tensor([-1, 1 << 40]), "i32": torch.arange(4).int(),
         "i16": torch.tensor([-300]).short(), "i8": torch.tensor([-3, 4]).char(), "u8": torch.tensor([200]).byte(),
         "bool": torch.tensor([[True, False]]), "scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3),
         "shared": base, "transposed": base.t(), "rows": base[2:5], "columns": base[:, 1:3],
         "every": base[::2], "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
         "expanded": torch.arange(3.).expand(1, 3), "parameter": torch.nn.Parameter(torch.randn(2, 2))})
    expected = {k: v.detach().contiguous().clone() for k, v in state.items()}
    torch.save(state, HERE / "state.pth")
    safetensors.torch.save_file(expected, HERE / "state.pth.expected.safetensors")
    torch.save(state, HERE / "protocol4.pth", pickle_protocol=4)
    safetensors.torch.save_file(expected, HERE / "protocol4.pth.expected.safetensors")
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    torch.save({"epoch": 3, "lr": 1e-4, "note": None, "state_dict": net.state_dict(),
                "optimizer": optimizer.state_dict()}, HERE / "wrapped.pth")
    safetensors.torch.save_file({k: v.clone() for k, v in net.state_dict().items()},
                                HERE / "wrapped.pth.expected.safetensors")
    torch.save({"a": {"w": base, 3: torch.ones(1)}, "b": 1}, HERE / "nested.pth")
    safetensors.torch.save_file({"a.w": base, "a.3": torch.ones(1)}, HERE / "nested.pth.expected.safetensors")

    torch.save({}, HERE / "none.pth")
    torch.save({"a": torch.tensor([1.5])}, HERE / "one.pth")

    torch.save(state, HERE / "legacy.pth", _use_new_zipfile_serialization=False)
    bad("legacy.pth", None, "UNSUPPORTED", "PyTorch's pickle format from before version 1.6; load it")
    tar = bytearray(512)
    tar[257:262] = b"ustar"
    bad("legacy-tar.pth", bytes(tar), "UNSUPPORTED", "PyTorch's tar format from before version 1.6")
    torch.save(net, HERE / "module.pth")
    bad("module.pth", None, "UNSUPPORTED", "names torch.nn.modules.container.Sequential; only")
    torch.jit.save(torch.jit.script(net), HERE / "script.pth")
    bad("script.pth", None, "UNSUPPORTED", "a TorchScript program")
    torch.save([base], HERE / "list.pth")
    bad("list.pth", None, "UNSUPPORTED", "the checkpoint holds a list")
    torch.save({"a": torch.zeros(2, dtype=torch.complex64)}, HERE / "complex.pth")
    bad("complex.pth", None, "UNSUPPORTED", "names torch.ComplexFloatStorage")
    torch.save({"a": torch.ones(2).expand(5, 2)}, HERE / "expanded.pth")
    bad("expanded.pth", None, "FORMAT", "a tensor lies outside storage 0, which has 2 elements")

    class Evil:
        def __reduce__(self):
            return os.system, ("touch /tmp/quern-was-here",)
    rewrite("evil.pth", {"data.pkl": pickle.dumps({"a": Evil()}, 2)})
    bad("evil.pth", None, "UNSUPPORTED", "names posix.system; only dictionaries of plain tensors")
    rewrite("bigendian.pth", {"byteorder": b"big"})
    bad("bigendian.pth", None, "UNSUPPORTED", "byteorder is not little-endian")
    rewrite("short-storage.pth", {"data/0": b"\0" * 92})
    bad("short-storage.pth", None, "FORMAT", "storage 0 should have 24 elements of f32, has 92 bytes")
    rewrite("no-storage.pth", {"data/0": None})
    bad("no-storage.pth", None, "FORMAT", "tensor f32: its storage data/0 is not in the archive")


def rewrite(name, changes):
    """state.pth with some members replaced."""
    with zipfile.ZipFile(HERE / "state.pth") as old, zipfile.ZipFile(HERE / name, "w") as new:
        for item in old.namelist():
            tail = item.split("/", 1)[1]
            data = changes.get(tail, old.read(item))
            if data is not None:
                new.writestr(zipfile.ZipInfo(f"state/{tail}"), data)


def npy(header, data=b"", version=1):
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def bad_npy():
    good = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
    for name, data, code, part in [
            ("magic", b"\x93NUMPX\1\0\0\0", "FORMAT", "header length"),
            ("version", npy(good, bytes(8), 4), "UNSUPPORTED", "npy version 4.0; 1.0, 2.0 and 3.0"),
            ("length", b"\x93NUMPY\2\0\xff\xff\xff\xff{", "LIMIT", "header length 4294967295, expected at most 65536"),
            ("length2", b"\x93NUMPY\1\0\xff\x00{", "FORMAT", "header length 255, expected at most 1"),
            ("cut", b"\x93NUMPY\1\0", "FORMAT", "8 bytes, too short for an npy header"),
            ("object", npy(good.replace(b"<f4", b"|O")), "UNSUPPORTED", "object arrays are pickles"),
            ("big", npy(good.replace(b"<f4", b">f4"), bytes(8)), "UNSUPPORTED", "'>f4' is big-endian"),
            ("complex", npy(good.replace(b"<f4", b"<c8"), bytes(16)), "UNSUPPORTED", "'<c8' is not supported"),
            ("structure", npy(good.replace(b"'<f4'", b"[('a', '<f4')]")), "UNSUPPORTED", "descr is a structure"),
            ("large-shape", npy(good.replace(b"(2,)", b"(1000000,1000000)"), bytes(8)), "FORMAT",
             "the shape needs 4000000000000 bytes, 8 are there"),
            ("wraps", npy(good.replace(b"(2,)", b"(4294967296,4294967296)"), bytes(8)), "FORMAT", "overflows 64 bits"),
            ("dimension", npy(good.replace(b"(2,)", b"(9223372036854775808,)"), bytes(8)), "FORMAT", "below 2^63"),
            ("negative", npy(good.replace(b"(2,)", b"(-2,)"), bytes(8)), "FORMAT", "where a dimension is expected"),
            ("axes", npy(good.replace(b"(2,)", b"(1,1,1,1,1,1,2)"), bytes(8)), "UNSUPPORTED", "more than 6 dimensions"),
            ("trailing", npy(good, bytes(9)), "FORMAT", "the shape needs 8 bytes, 9 are there"),
            ("twice", npy(good.replace(b"'shape'", b"'descr': '<f4', 'shape'"), bytes(8)), "FORMAT", "one each of"),
            ("missing", npy(b"{'descr': '<f4', 'shape': (2,)}", bytes(8)), "FORMAT", "where descr, fortran_order"),
            ("code", npy(good.replace(b"(2,)", b"exit()"), bytes(8)), "FORMAT", "where a tuple is expected"),
            ("after", npy(good + b"x", bytes(8)), "FORMAT", "has x where its end is expected")]:
        bad(f"bad-{name}.npy", data, code, part)


def archive(*members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members:
            z.writestr(zipfile.ZipInfo(name), data, method)
    return bytearray(out.getvalue())


def claim(data, size):
    """Every directory says `size` inflated bytes."""
    local, central = data.find(b"PK\3\4"), data.find(b"PK\1\2")
    data[local + 22:local + 26] = data[central + 24:central + 28] = struct.pack("<I", size)
    return data


def bad_npz():
    out = io.BytesIO()
    np.save(out, np.arange(1000, dtype="f4") % 7)
    good = out.getvalue()
    bad("bad-claim.npz", claim(archive(("a.npy", good)), 0xf0000000), "LIMIT", "bytes in ")
    more, less = len(good) + 4, len(good) - 4
    for name, size, n in [("more", len(good), 1001), ("less", len(good) + 4, 1001)]:
        shape = good.replace(b"(1000,)", b"(%d,)" % (n if name == "less" else 999))
        inner = len(good) - 4 if name == "more" else len(good) + 4
        bad(f"read-{name}.npz", claim(archive(("a.npy", shape)), inner), "FORMAT",
            "a.npy: " if name == "more" else "a.npy")
    wrong = archive(("a.npy", good), method=zipfile.ZIP_STORED)
    wrong[wrong.find(good) + 200] ^= 1
    bad("read-crc.npz", wrong, "FORMAT", "a.npy: CRC error")
    bad("bad-name.npz", archive(("../a.npy", good)), "FORMAT", "the name leads out of the archive")
    bad("bad-absolute.npz", archive(("/a.npy", good)), "FORMAT", "the name leads out of the archive")
    bad("bad-suffix.npz", archive(("a.txt", b"x")), "FORMAT", "names end in .npy")
    bad("bad-member.npz", archive(("a.npy", b"x")), "FORMAT", "a.npy: 1 bytes, too short for an npy header")
    bad("bad-object.npz", archive(("a.npy", npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"))),
        "UNSUPPORTED", "a.npy: descr '|O': object arrays")
    bad("bad-twice.npz", archive(("a.npy", good), ("a.npy", good)), "FORMAT", "")
    bad("bad-method.npz", archive(("a.npy", good), method=zipfile.ZIP_BZIP2), "UNSUPPORTED", "packed by method 12")
    locked = archive(("a.npy", good))
    locked[6] |= 1
    locked[locked.find(b"PK\1\2") + 8] |= 1
    bad("bad-encrypted.npz", locked, "UNSUPPORTED", "a.npy is encrypted")
    bad("bad-cut.npz", archive(("a.npy", good))[:-30], "FORMAT", "")
    zeros = io.BytesIO()
    np.save(zeros, np.zeros(1 << 16, "f4"))
    bad("bad-large.npz", claim(archive(("a.npy", zeros.getvalue())), 257 << 20), "LIMIT", "at most 200 times")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for old in HERE.iterdir():
        old.unlink()
    numpy_files()
    torch_files()
    bad_npy()
    bad_npz()
    (HERE / "cases.txt").write_text("".join(line + "\n" for line in cases))
