#!/usr/bin/env bash
# Makes a Debian package of the tool with its kernel, manual pages and completions: package.sh [OUTPUT]. Needs cargo-deb
# (cargo install cargo-deb). An installed package leaves nothing behind when it is removed but each user's cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
output=$(realpath -m "${1:-../../target/debian}")
rm -rf dist
trap 'rm -rf dist' EXIT
../../heddle install --prefix dist >&2
cargo deb -p heddle-cli --no-build --no-strip --output "$output"
