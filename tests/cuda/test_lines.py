#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What quern says of a GPU, with the driver that does nothing (no_driver.c) in the place of NVIDIA's.

    tests/cuda/test_lines.py QUERN FOLDER

FOLDER has that driver. Exits with 77 where there is a real one: LD_LIBRARY_PATH puts ours first.
"""
import json
import os
import subprocess
import sys
import tempfile

QUERN, FOLDER = sys.argv[1:3]
DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/demo")
n_failed = 0


def environment(folder, env):
    full = dict(os.environ, LD_LIBRARY_PATH=folder, XDG_CACHE_HOME=os.path.join(FOLDER, "cache"))
    full.update({f"NO_DRIVER_{k.upper()}": str(v) for k, v in env.items()})
    return full


def run(*args, folder=FOLDER, **env):
    p = subprocess.run([QUERN, *args], env=environment(folder, env), capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def first_line(*args, **env):
    """Of standard error; the program is then asked to end."""
    with subprocess.Popen([QUERN, *args], env=environment(FOLDER, env), stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL) as p:
        line = p.stderr.readline().decode()
        p.terminate()
        p.wait(60)
    return line


def check(what, ok, got=""):
    global n_failed
    if not ok:
        n_failed += 1
        print("FAILED ", what, got)


def refused(what, line, *args, **env):
    status, out, err = run("generate", "-p", "x", "-n", "4", "--device", "cuda:0", *args, **env)
    lines = err.splitlines()
    check(what, status == 1 and not out.strip() and len(lines) == 1 and lines[0].startswith("quern: ") and line in err,
          (status, out, err))


def main():
    refused("an old driver", "is for CUDA 11.8; one for CUDA 12.0 or newer is needed", version=11080)
    refused("what to do without", '; device "auto" takes the CPU then', gpus=0)
    refused("no GPU", "cuda:0: there are 0 GPUs: CUDA_ERROR_NO_DEVICE", gpus=0)
    refused("an old GPU", "the GPU is sm_70; sm_80 or newer is needed", arch=70)
    refused("little memory", " MiB, and 0.19 MiB are there: ", memory=200000)
    refused("a context that does not fit", "positions fit", "-c", "100000", memory=40 << 20)
    refused("no memory for a context", "while making a context; nvidia-smi lists the programs", fail="CtxRetain", result=2)
    refused("a launch fails", "CUDA_ERROR_ILLEGAL_ADDRESS while launching a plan", fail="cuGraphLaunch")
    refused("a copy fails", "while writing to the device", fail="cuMemcpyHtoD")
    refused("an allocation fails", "asking for memory", fail="cuMemAlloc_v2")
    refused("memory is out later", "no memory", fail="cuMemCreate", result=2)
    for args, env in ((("--device", "auto"), {"gpus": 0}), (("--device", "auto"), {"version": 11080}),
                      (("--gpu-layers", "0"), {}), (("-ngl", "0"), {"gpus": 0}),
                      (("-ngl", "0", "--device", "auto"), {}), (("-ngl", "auto"), {"gpus": 0})):
        status, out, err = run("generate", "-p", "x", "-n", "4", "--verbose", *args, **env)
        check(f"the CPU: {args} {env}", status == 0 and "device cpu" in err and "us of a token's time each" in err, err)
    auto = ("--device", "auto")
    for what, args, env, why in (
            ("a context", ("generate", "-p", "x", "-n", "4", "--verbose"), {"fail": "CtxRetain", "result": 2}, "making a context"),
            ("weights within a limit", ("generate", "-p", "x", "-n", "4", "--verbose", "--memory-limit", "1G"), {"memory": 200000},
             "the weights need"),
            ("weights", ("generate", "-p", "x", "-n", "4", "--verbose"), {"memory": 200000}, "the weights need"),
            ("a draft", ("generate", "-p", "x", "-n", "4", "--verbose", "--draft-model", DEMO), {"memory": 9 << 20}, "the weights need"),
            ("a benchmark", ("bench", "-p", "8", "-n", "2", "-r", "1", "-t", "2", "--no-ceilings"), {"memory": 200000}, "the weights need")):
        status, out, err = run(*args, *auto, **env)
        warned = [x for x in err.splitlines() if "warning" in x]
        check(f"auto has no memory for {what}", status == 0 and len(warned) == 1 and ("device cpu" in err or "| tg2 |" in out)
              and warned[0].startswith("quern: warning: cuda:0: ") and why in warned[0]
              and warned[0].endswith('; device "auto" takes the CPU'), (status, out, err))
    line = first_line("serve", "--port", "0", *auto, memory=200000)
    check("auto has no memory for what is served", line.startswith("quern: warning: cuda:0: the weights need"), line)
    status, out, err = run("generate", "-p", "x", "-n", "4", "--verbose", "-ngl", "0", "--device", "cuda:0")
    check("the GPU that --device names, whatever -ngl says", status == 0 and "device cuda:0: none" in err and err.startswith(
          "quern: warning: --gpu-layers 0: all 4 layers run on cuda:0, as --device says\n"), err)
    for args in (("-ngl", "99"), ("-ngl", "all"), ("-ngl", "auto"), ("--n-gpu-layers", "-1"), ("--device", "cuda"), ("--device", "auto"), ("-ngl", "1", "--device", "cuda:0")):
        status, out, err = run("generate", "-p", "x", "-n", "4", "--verbose", *args)
        check(f"the GPU: {args}", status == 0 and "device cuda:0: none, sm_90" in err and "hit rate" in err
              and " a token, handed over in " in err and "MiB of the host page-locked" in err, err)
    for size, locked in (("1K", "0.0"), ("3145728", "3.0")):
        err = run("generate", "-p", "x", "-n", "4", "--verbose", "--device", "cuda:0", "--wired-limit", size)[2]
        check(f"what is page-locked within {size}", f", {locked} MiB of the host page-locked" in err, err)
    refused("a limit of memory", " are there within the limit: ", "--memory-limit", "200K")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "libcuda.so.1"), "w") as f:
            f.write("no library")
        refused("a file that is no driver", f"there is no NVIDIA driver: {folder}/libcuda.so.1: ", folder=folder)
    bench = ("bench", "--device", "cuda:0", "-p", "8", "-n", "2", "-r", "1", "-t", "2")
    status, out, err = run(*bench)
    check("bench says what the GPU is, and what that can do",
          status == 0 and not err and "|\n\ncuda:0: none, sm_90, 16 GiB, at best: reads " in out and " GB/s; multiplies bf16 " in out
          and "f32" not in out and "int8" not in out, (out, err))
    status, out, err = run(*bench, memory=100 << 20)
    check("too little memory to read", status == 0 and ", at best: reads 0.0 GB/s; multiplies bf16 " in out, (out, err))
    status, out, err = run(*bench, fail="cuLaunchKernelEx")
    check("loops that cannot be launched", status == 1 and "cuda:0: " in err, (out, err))
    status, out, err = run(*bench, "-o", "json")
    known = json.loads(out)
    check("and as JSON", status == 0 and known["device"] == "cuda:0: none, sm_90, 16 GiB" and len(known["results"]) == 2
          and known["ceilings"][0]["read_gb_s"] > 0 and known["ceilings"][0]["bf16_gop_s"] > 0 == known["ceilings"][0]["int8_gop_s"], out)
    for args, env, where in ((("--device", "auto"), {}, "cuda:0"), (("--device", "auto"), {"gpus": 0}, "cpu"),
                             (("-ngl", "99"), {}, "cuda:0"), ((), {}, None)):
        line = first_line("serve", "--port", "0", *args, **env)
        on = f" on {where}" if where else ""
        check(f"the server says where it runs: {args} {env}",
              line.startswith(f"quern: demo{on} at http://127.0.0.1:") or "built without libmicrohttpd" in line, line)
    with tempfile.TemporaryDirectory() as folder:
        cache = ("generate", "-p", "x", "-n", "1", "--prompt-cache", os.path.join(folder, "cache"))
        made, other = run(*cache, "--device", "cuda:0"), run(*cache)
        check("a prompt cache of another device", made[0] == 0 and other[0] == 1 and other[2].count("\n") == 1
              and "on another device, or with other options" in other[2], (made, other))
    status, out, err = run("generate", "-p", "x", "--device", "cuda:3")
    check("the fourth of one", status == 1 and err == "quern: cuda:3: there is 1 GPU, cuda:0\n", err)
    status, out, err = run("generate", "-p", "x", "--device", "cuda:3", gpus=2)
    check("the fourth of two", status == 1 and err == "quern: cuda:3: there are 2 GPUs, cuda:0 to cuda:1\n", err)
    status, out, err = run("generate", "-p", "x", "-n", "4", "--device", "cuda:0", "--verbose", fail="cuGraphInstantiate", result=2)
    check("no memory for graphs", status == 0 and err.count("cuda:0: no memory for a graph: kernels are launched one by one\n") == 1, err)
    status, out, err = run("generate", "-p", "x", "-n", "4", "--device", "cuda:0", pinned=0)
    check("nothing can be page-locked", status == 0, err)
    print(f"{n_failed} failed")
    return n_failed != 0


if not os.path.exists(os.path.join(FOLDER, "libcuda.so.1")):
    print("skipped: no_driver.c was not built")
    sys.exit(77)
sys.exit(main())
