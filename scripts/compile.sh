#!/usr/bin/env bash
# Makes build/compiled: a copy of the project whose request path through the router is compiled (see pyproject.toml).
# Nothing is done while that is newer than every source.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${PDCORE_VENV:-.venv}
to=build/compiled
parts=(pdcore bench tests pyproject.toml README.md LICENSE)
if [ -e "$to/done" ] && [ -z "$(find "${parts[@]}" \( -name '*.py' -o -name '*.toml' \) -newer "$to/done" -print -quit)" ]; then
    exit 0
fi
printf 'compile: the request path of the router, about 3 minutes\n' >&2
rm -rf "$to"
mkdir -p "$to"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
cp -r "${parts[@]}" "$to/"
# Calls from one compiled function to another go straight: nobody replaces them.
export CFLAGS="${CFLAGS:-} -fno-semantic-interposition -fno-plt"
HATCH_BUILD_HOOK_ENABLE_MYPYC=1 "$venv/bin/python" -m pip wheel -q --no-input --disable-pip-version-check --no-deps \
    -w "$wheels" "./$to"
"$venv/bin/python" -m zipfile -e "$wheels"/*.whl "$to"
touch "$to/done"
