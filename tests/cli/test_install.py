#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `make install` installs, in a folder that is then moved: it runs, links, and names nothing of the source tree.

    tests/cli/test_install.py QUERN BUILD CC...
"""
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from helper import SOURCE, check, finish, skipped

SOURCE = pathlib.Path(SOURCE).resolve()
BUILD = pathlib.Path(sys.argv[2]).resolve()
CC = sys.argv[3:]
PROGRAM = r"""
#include <quern/quern.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    static qn_error err;
    qn_device *device;
    qn_model *model;
    if (argc != 2 || qn_device_open(&device, "cpu", NULL, &err) != QN_OK ||
        qn_model_open(&model, device, argv[1], NULL, &err) != QN_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    printf("%s %s\n", info.family, qn_version());
    qn_model_close(model);
    qn_device_close(device);
    return 0;
}
"""


def do(*command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, **more)
    return done.returncode, done.stdout, done.stderr


def option(name):
    options = json.loads(do("meson", "introspect", "--buildoptions", BUILD)[1])
    value = next(o["value"] for o in options if o["name"] == name)
    return value if isinstance(value, str) or not isinstance(value, list) else ",".join(value)


def absent(tool, package):
    if shutil.which(tool):
        return False
    skipped(f"there is no {tool} (Debian: {package}; scripts/setup --tests installs it)")
    return True


def test_files(root):
    share = root / "share"
    for path in ("bin/quern", "include/quern/quern.h", "share/doc/quern/LICENSE", "share/doc/quern/CHANGELOG.md",
                 "share/man/man1/quern.1", "share/man/man1/quern-chat.1", "share/fish/vendor_completions.d/quern.fish",
                 "share/zsh/site-functions/_quern", "share/bash-completion/completions/quern.bash",
                 "share/quern/models/demo/model.safetensors"):
        check(f"{path} is installed", (root / path).is_file())
    if not option("debug"): # debug information names sources
        for path in root.rglob("*"):
            named = path.is_file() and not path.is_symlink() and str(SOURCE).encode() in path.read_bytes()
            check(f"{path.name} does not name the source tree", not named)
    pages = sorted((share / "man/man1").glob("quern*.1"))
    check("pages", len(pages) >= 6)
    if not absent("mandoc", "mandoc"):
        for page in pages:
            said = [x for x in do("mandoc", "-T", "lint", page)[1].splitlines()
                    if not re.search(r"referenced manual not found: Xr quern", x)] # it asks the machine's own pages
            check(f"mandoc -T lint {page.name}", not said, said)


def test_command(root, empty):
    env = {"PATH": os.environ["PATH"], "HOME": empty}
    code, out, err = do(root / "bin/quern", "generate", "-p", "Hi", "-n", "3", "--temp", "0", cwd=empty, env=env)
    check("the moved command finds the built-in model", code == 0 and out.strip(), err)
    path = json.loads(do(root / "bin/quern", "info", "--json", cwd=empty, env=env)[1])["path"]
    check("it lies beside it", os.path.realpath(path) == str(root / "share/quern/models/demo"), path)


def test_completions(root):
    words = "generate chat tokenize template info convert fuse eval bench batch classify embed inspect serve train"
    script = root / "share/bash-completion/completions/quern.bash"
    ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _quern; echo "${COMPREPLY[@]}"'
    for line, want in ((["quern", "gen"], "generate"), (["quern", ""], words + " help --help --version"),
                       (["quern", "generate", "--top"], "--top-k --top-p"), (["quern", "info", "--cont"], "--context"),
                       (["quern", "generate", "-n", ""], ""), (["quern", "info", "--device", "c"], "cpu cuda:0")):
        check(f"bash completes {' '.join(line)}", do("bash", "-c", ask, "bash", script, *line)[1].strip() == want)
    if not absent("zsh", "zsh"):
        code, out, err = do("zsh", "-n", root / "share/zsh/site-functions/_quern")
        check("zsh reads its completions", code == 0 and not err, err)
    if not absent("fish", "fish"):
        script = root / "share/fish/vendor_completions.d/quern.fish"
        out = do("fish", "--no-config", "-c", f"source '{script}'; complete -C 'quern gen'; complete -C 'quern info --con'")[1]
        check("fish completes", [x.split("\t")[0] for x in out.splitlines()] == ["generate", "--context"], out)


def test_versions(root, packages):
    want = json.loads(do("meson", "introspect", "--projectinfo", BUILD)[1])["version"]
    header = (root / "include/quern/base.h").read_text()
    parts = [re.search(rf"QN_VERSION_{p} (\d+)", header).group(1) for p in ("MAJOR", "MINOR", "PATCH")]
    check("the headers' version", ".".join(parts) == want, parts)
    check("quern --version", do(root / "bin/quern", "--version")[1] == f"quern {want}\n")
    check("pkg-config --modversion", do("pkg-config", "--modversion", "quern", env=packages)[1].strip() == want)
    check("the changelog", f"## {want}" in (SOURCE / "CHANGELOG.md").read_text())


def test_linking(root, folder, packages):
    source, model = folder / "program.c", root / "share/quern/models/demo"
    source.write_text(PROGRAM)
    sanitize = option("b_sanitize")
    flags = [] if sanitize in ("", "none") else [f"-fsanitize={sanitize}"]
    readme = re.search(r"build/libquern\.a (-l.*)", (SOURCE / "README.md").read_text()).group(1).split()
    cflags = do("pkg-config", "--cflags", "quern", env=packages)[1].split()
    libraries = do("pkg-config", "--libs", "quern", env=packages)[1].split()
    ways = [("as pkg-config says", [*cflags, *libraries])]
    for archive in root.rglob("libquern.a"):
        ways.append(("as README says", [f"-I{root}/include", archive, *readme]))
    shared = sorted(root.rglob("libquern.so"))
    check("a kind of library", len(ways) == 2 or shared)
    paths = ":".join(str(p.parent) for p in shared)
    compilers = [CC] if absent("g++", "g++") else [CC, ["g++", "-x", "c++", "-std=c++17"]]
    for compiler, (name, words) in itertools.product(compilers, ways):
        name = f"{name}, {compiler[0]}"
        end = ["-x", "none"] if "-x" in compiler else [] # what follows is no C++
        code, out, err = do(*compiler, *flags, source, *end, "-o", folder / "program", *words)
        check(f"a program with a model links {name}", code == 0, err)
        code, out, err = do(folder / "program", model, env=dict(os.environ, LD_LIBRARY_PATH=paths))
        check(f"it runs, linked {name}", code == 0 and out.startswith("llama 0."), (out, err))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        code, out, err = do("meson", "install", "-C", BUILD, "--destdir", folder / "destination", "--no-rebuild",
                            "--quiet")
        check("meson install", code == 0, out + err)
        prefix = pathlib.Path(option("prefix"))
        root = folder / "moved"
        (folder / "destination" / prefix.relative_to("/")).rename(root)
        pc = next(root.rglob("quern.pc"))
        libdir = "${prefix}/" + str(pc.parent.parent.relative_to(root))
        pc.write_text(re.sub(r"^libdir=.*", f"libdir={libdir}", re.sub(r"^prefix=.*", f"prefix={root}", pc.read_text()),
                             flags=re.M))
        packages = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent))
        (folder / "empty").mkdir()
        test_files(root)
        test_command(root, folder / "empty")
        test_completions(root)
        test_versions(root, packages)
        test_linking(root, folder, packages)
    code, out, err = do("make", "-n", "install", f"BUILD={BUILD}", "PREFIX=/opt/x", cwd=SOURCE)
    check("make install PREFIX=", "-Dprefix=/opt/x" in out, out + err)
    finish()


main()
