#!/usr/bin/env bash
# The checks of the range lock that are too long, or need too much, for `cargo test`. Each ends with a line of counts
# and fails if anything did:
#   check.sh loom [NAME]      models of the real code, a minute (a name runs one)
#   check.sh loom-all [NAME]  the same with one preemption more in each, where that ends within the hour
#   check.sh weaken [TEXT]    weakens each ordering once and expects a model to fail (a text: only lines with it)
#   check.sh miri             the tests under Miri, with fewer operations
#   check.sh stress [OPS]     the shadow-array stress, 100 million operations unless told otherwise
#   check.sh tsan             tests of several threads under ThreadSanitizer
#   check.sh msrv             builds and tests with the oldest compiler that Cargo.toml names
#   check.sh fuzz [SECONDS]   sequences of operations, chosen by libFuzzer, against a list; a minute unless told otherwise
#   check.sh portable         builds for macOS and Windows
#   check.sh publish          everything of a publication but the upload
#   check.sh semver [BASE]    compares the interface with the last release's, or a commit's, by cargo-semver-checks
#   check.sh capi             the C interface: libraries, header, pkg-config file, and the C++ example against them
set -euo pipefail
cd "$(dirname "$0")"
# Not the one that `cargo test` builds in: other flags would rebuild everything there each time.
target=${CARGO_TARGET_DIR:-../../target}

# Runs a test command, shows what it prints, and sums up: counts NAME COMMAND...
counts() {
    local name=$1 log status=0
    shift
    log=$(mktemp)
    "$@" 2>&1 | tee "$log" || status=$?
    awk -v name="$name" '
        / ran$/ { runs += $(NF - 1) }
        /^test result:/ { passed += $4; failed += $6 }
        END { printf "%s: %d passed, %d failed, %d runs or operations\n", name, passed, failed, runs }' "$log"
    # A filter that fits nothing is a mistake, not a success.
    grep -q '^test result: .* [1-9][0-9]* passed' "$log" || status=1
    rm -f "$log"
    return "$status"
}

loom() {
    RUSTFLAGS="--cfg heddle_loom" CARGO_TARGET_DIR="$target/loom" nice -n 10 \
        cargo test -q --release -p heddle-range-lock --test loom -- --nocapture "$@"
}

miri() {
    RUST_BACKTRACE=0 MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks" CARGO_TARGET_DIR="$target/miri" \
        nice -n 15 cargo +nightly miri test -q -p heddle-range-lock --lib \
        --test semantics --test order --test stress --test memory --test list --test slice --test hostile --test leaks --test layout --test records \
        -- --nocapture
}

msrv() {
    local oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../../Cargo.toml)
    local cargo=(nice -n 10 cargo "+$oldest")
    "${cargo[@]}" check -q --target-dir "$target/msrv" -p heddle-range-lock --no-default-features
    counts msrv "${cargo[@]}" test -q --target-dir "$target/msrv" -p heddle-range-lock --features capi \
        --lib --test semantics --test slice
}

portable() {
    local system
    for system in aarch64-apple-darwin x86_64-pc-windows-gnu; do
        rustup target add "$system" >/dev/null 2>&1
        nice -n 10 cargo check -q --target "$system" --target-dir "$target/portable" -p heddle-range-lock --features capi
        echo "portable: builds for $system"
    done
}

stress() {
    HEDDLE_STRESS_OPS=$1 nice -n 15 cargo test -q --release -p heddle-range-lock --test stress -- --nocapture
}

. ../../tests/published.sh

tsan() {
    HEDDLE_STRESS_OPS=2000000 sanitized heddle-range-lock --test stress --test semantics --test slice --test hostile --test records \
        -- --nocapture
}

command=${1:-}
shift || true
case "$command" in
loom) counts loom loom "$@" ;;
loom-all) HEDDLE_LOOM_ALL=1 counts loom-all loom "$@" ;;
weaken) exec ./weaken.sh "$@" ;;
miri) counts miri miri ;;
stress) counts stress stress "${1:-100000000}" ;;
tsan) counts tsan tsan ;;
msrv) msrv ;;
portable) portable ;;
publish) publishable heddle-range-lock ;;
semver) compatible heddle-range-lock "$@" ;;
fuzz) fuzzed heddle-range-lock model "${1:-60}" ;;
capi) exec ./capi.sh ;;
*)
    sed -n '2,15s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
