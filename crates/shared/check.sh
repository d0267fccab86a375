#!/usr/bin/env bash
# The checks of heddle-shared that `cargo test` does not make; run anywhere inside of the repository.
#   loom [MODEL]    every interleaving of the real protocols, or of one model
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

loom() {
    RUSTFLAGS="--cfg heddle_loom" nice -n 10 cargo test -j2 --release --lib --target-dir "$target/loom" --quiet -- models "$@"
}

case ${1:-} in
    loom) "$@" ;;
    *) sed -n '2,3s/^# *//p' "${BASH_SOURCE[0]##*/}"; exit 2 ;;
esac
