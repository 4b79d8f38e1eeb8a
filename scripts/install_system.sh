#!/usr/bin/env bash
# Installs what the demo and the tests run: etcd, Redis and openssl, and in CI a Docker engine.
#
# Nothing happens when they are there. apt is used as root or through a sudo that asks nothing; anybody else is told
# what to install, and the script fails only when etcd itself is missing (or anything at all, with CI=true). No service
# is started, and none that was not enabled before stays enabled: pdcore starts its own processes on free ports.
set -euo pipefail

in_ci() { [ "${CI:-}" = true ]; }
say() { printf 'system: %s\n' "$*" >&2; }

missing=()
services=()
need() { # need COMMAND PACKAGE [SERVICE...]
    local command=$1 package=$2
    shift 2
    # Debian keeps some servers in sbin, which is not on every user's path.
    if ! PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null; then
        missing+=("$package")
        services+=("$@")
    fi
}

need_library() { # need_library FILE PACKAGE
    if ! PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep -F "$1" >/dev/null; then missing+=("$2"); fi
}

need etcd etcd-server etcd.service
need etcdctl etcd-client
need openssl openssl
need redis-server redis-server redis-server.service
if [ "${1:-}" = cluster ]; then
    need ip iproute2
    need_library libibverbs.so.1 libibverbs1 # mooncake's
fi
if in_ci; then
    need dockerd docker.io docker.service docker.socket containerd.service
fi
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    if sudo -n true 2>/dev/null; then as_root=(sudo -n); else as_root=(no); fi
fi

if [ "${as_root[0]:-}" = no ] || ! command -v apt-get >/dev/null; then
    say "missing: ${missing[*]}. Installing them needs apt and root; please install them yourself:"
    say "    apt-get install --no-install-recommends ${missing[*]}"
    if in_ci || ! command -v etcd >/dev/null; then exit 1; fi
    say "going on without: what needs them is skipped"
    exit 0
fi

run() { "${as_root[@]}" "$@"; }

# A package's start script asks policy-rc.d first; 101 means "not allowed". One that is there already is left alone.
policy=/usr/sbin/policy-rc.d
made_policy=no
restore() { if [ "$made_policy" = yes ]; then run rm -f "$policy"; fi; }
trap restore EXIT
if [ ! -e "$policy" ]; then
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' | run tee "$policy" >/dev/null
    run chmod 755 "$policy"
fi

apt() {
    run env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=240 -q "$@" </dev/null
}
install() { apt install -y --no-install-recommends "${missing[@]}"; }

say "installing ${missing[*]} (half a minute)"
log=$(mktemp)
# The package list of a fresh machine may be empty or old, so a first failure fetches it and tries once more.
if ! install >"$log" 2>&1 && ! { apt update && install; } >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "apt could not install ${missing[*]}; the whole log is $log"
    exit 1
fi
rm -f "$log"

for service in "${services[@]}"; do
    run systemctl disable "$service" >/dev/null 2>&1 || true # without systemd there is nothing to disable
done
say "installed ${missing[*]}; no service was started"
