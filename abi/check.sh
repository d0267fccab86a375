#!/usr/bin/env bash
# The checks of heddle-abi that `cargo test` does not make; run anywhere inside of the repository.
#   loom [MODEL]    every interleaving of the real protocols, or of one model
#   weaken [NAME]   the orderings of weaken.list, weakened one by one: each must make its model fail
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

loom() {
    RUSTFLAGS="--cfg heddle_loom" nice -n 10 cargo test -j2 --release --lib --target-dir "$target/loom" --quiet -- models "$@"
}

. ../crates/coroutine/weaken.sh
weaken() {
    weakened "$target/weaken-abi" "--lib" "$@"
}

case ${1:-} in
    loom | weaken) "$@" ;;
    *) sed -n '2,4s/^# *//p' "${BASH_SOURCE[0]##*/}"; exit 2 ;;
esac
