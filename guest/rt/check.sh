#!/usr/bin/env bash
# The checks of heddle-rt that `cargo test` does not make; run anywhere inside of the repository.
#   msrv            builds and tests with the oldest supported compiler
#   publish         everything of a publication but the upload, of the crates that it needs as well
#   semver [BASE]   compares the interface with the last release's, or a commit's, by cargo-semver-checks
# A compiler that is missing is installed by rustup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

. ../../tests/published.sh

msrv() {
    local oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../../Cargo.toml)
    cargo "+$oldest" --version >/dev/null 2>&1 || rustup toolchain install "$oldest" --profile minimal
    nice -n 10 cargo "+$oldest" test -j2 --target-dir "$target/msrv" -p heddle-rt
}

case ${1:-} in
    msrv) msrv ;;
    publish) publishable heddle-rt heddle-abi heddle-coroutine heddle-rt-macros ;;
    semver) compatible heddle-rt "${@:2}" ;;
    *) sed -n '2,6s/^# *//p' "${BASH_SOURCE[0]##*/}"; exit 2 ;;
esac
