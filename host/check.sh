#!/usr/bin/env bash
# Checks of the host tool that take more than `cargo test`.
#
#   check.sh portable   builds for hosts with another processor than the guest's
set -euo pipefail
cd "$(dirname "$0")"
# Not the one that `cargo test` builds in.
target=${CARGO_TARGET_DIR:-../target}

portable() {
    local system=aarch64-unknown-linux-gnu
    rustup target add "$system" >/dev/null 2>&1
    if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
        echo "portable: a library in C needs Debian's package gcc-aarch64-linux-gnu" >&2
        return 1
    fi
    nice -n 10 cargo check -q --target "$system" --target-dir "$target/portable" -p heddle-cli
    echo "portable: builds for $system"
}

case "${1:-}" in
portable) portable ;;
*)
    sed -n '3,4s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
