#!/usr/bin/env bash
# Builds the fake engines and the load generator, and installs the peers, one virtual environment each, into PEERS_DIR
# (default ~/.cache/pdcore-peers). A peer that cannot be installed is left out; so is wrk's part without wrk.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
peers=${PEERS_DIR:-$HOME/.cache/pdcore-peers}
python=${PDCORE_PYTHON:-python3}
say() { printf 'bench-router: %s\n' "$*" >&2; }

mkdir -p "$peers"
for tool in stub lg; do
    if [ "$here/$tool.c" -nt "$peers/$tool" ]; then gcc -O2 -o "$peers/$tool" "$here/$tool.c"; fi
done

peer() { # peer NAME PACKAGE
    local venv=$peers/v-$1
    if [ -e "$venv/ready" ]; then return; fi
    say "installing $2"
    if "$python" -m venv "$venv" && "$venv/bin/python" -m pip -qq --no-input --disable-pip-version-check install "$2"; then
        touch "$venv/ready"
    else
        say "$2 cannot be installed; its figures are left out"
    fi
}
peer sgl sglang-router==0.3.2
peer vllm vllm-router==0.1.17
peer smg smg==1.13.0

if ! command -v wrk >/dev/null; then
    if [ "$(id -u)" = 0 ] && apt-get install -y -q --no-install-recommends wrk >/dev/null 2>&1; then exit 0; fi
    say "wrk is missing: apt-get install wrk"
    exit 1
fi
