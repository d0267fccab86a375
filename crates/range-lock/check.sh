#!/usr/bin/env bash
# The checks of the range lock that are too long, or need too much, for `cargo test`:
#   check.sh loom [NAME]   models of the real code (a name runs one)
#   check.sh weaken        weakens each ordering once and expects a model to fail
#   check.sh miri          the tests under Miri
#   check.sh stress [OPS]  the shadow-array stress, 100 million operations unless told otherwise
#   check.sh capi          the C interface: libraries, header, pkg-config file, and the C++ example against them
set -eu
cd "$(dirname "$0")"
# Not the one that `cargo test` builds in: other flags would rebuild everything there each time.
target=${CARGO_TARGET_DIR:-../../target}

loom() {
    RUSTFLAGS="--cfg heddle_loom" CARGO_TARGET_DIR="$target/loom" \
        cargo test -q --release -p heddle-range-lock --test loom -- "$@"
}

case "${1:-}" in
loom) shift; loom "$@" ;;
weaken) exec ./weaken.sh ;;
miri)
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks" cargo +nightly miri test -q -p heddle-range-lock \
        --test semantics --test stress --test memory --test list -- --skip many
    ;;
stress)
    HEDDLE_STRESS_OPS=${2:-100000000} cargo test -q --release -p heddle-range-lock --test stress -- --nocapture
    ;;
capi) exec ./capi.sh ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
