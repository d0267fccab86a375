#!/usr/bin/env bash
# The checks of the kernel that its build does not make:
#   check.sh lint    the lints, among them that no allocation ends the machine (clippy.toml)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

lint() {
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    cargo clippy --quiet --target x86_64-unknown-none
}

case ${1:-} in
lint) lint ;;
*) sed -n '2,3s/^# \?//p' "$0" >&2; exit 2 ;;
esac
