#!/usr/bin/env bash
# The checks of heddle-coroutine that are too long for `cargo test`; run anywhere inside of the repository.
#   loom [MODEL]    every interleaving of the real protocols, or of one model
#   schedules       random schedules of larger machines, 500 of each kind; 50,000 with HEDDLE_LONG=1
#   weaken [NAME]   the orderings of weaken.list, weakened one by one: each must make its model fail
#   miri            the unsafe code under the interpreter, leaks included; some minutes. Not run there: `reactor` (epoll
#                   with a timer descriptor) and a signal handler, which it does not know; `million`, `limits` and the
#                   long rounds, for time; `object`, which starts compilers; the models, which loom runs
#   tsan            tests of several threads under ThreadSanitizer
#   ecosystem       hyper and rustls over the crate's streams, in its executors
#   fuzz [SECONDS]  the randomized programs and games of one thread, with libFuzzer's numbers; a minute unless told
#                   otherwise
#   portable        builds for macOS and Windows, and runs here what those systems have in place of Linux's calls
#   publish         everything of a publication but the upload
#   semver [BASE]   compares the interface with the last release's, or a commit's, by cargo-semver-checks
#   object          builds the core as a shared object and reads it
#   features        what needs features that no other test turns on
#   long            randomized schedules and stress, longer
#   msrv            builds and tests with the oldest supported compiler
# Compilers that are missing are installed by rustup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

loom() {
    RUSTFLAGS="--cfg heddle_loom" nice -n 10 cargo test -j2 --release --no-default-features --features alloc --lib \
        --target-dir "$target/loom" --quiet -- --test-threads=2 models "$@"
}

schedules() {
    SHUTTLE_SILENCE_WARNINGS=1 RUSTFLAGS="--cfg heddle_loom --cfg heddle_shuttle" nice -n 10 cargo test -j2 --release \
        --no-default-features --features alloc --lib --target-dir "$target/shuttle" --quiet -- schedules "$@"
}

. ./weaken.sh
weaken() {
    weakened "$target/weaken" "--no-default-features --features alloc --lib" "$@"
}

miri() {
    cargo +nightly miri --version >/dev/null 2>&1 ||
        rustup toolchain install nightly --profile minimal --component miri,rust-src
    # Backtraces of the tests' own panics take the interpreter minutes.
    RUST_BACKTRACE=0 MIRIFLAGS="-Zmiri-strict-provenance" nice -n 10 cargo +nightly miri test -j2 \
        --target-dir "$target/miri" \
        --test machine --test executors --test hostile --test foreign --test library --test soundness --test wait --test global \
        --lib --test random "$@"
}

. ../../tests/published.sh

tsan() {
    sanitized heddle-coroutine --test executors --test hostile --test foreign --test library --test soundness --test wait \
        --test machine "$@"
}

ecosystem() {
    nice -n 10 cargo test -j2 -p heddle-ecosystem "$@"
}

fuzz() {
    fuzzed heddle-coroutine programs "${1:-60}"
}

portable() {
    local system
    for system in aarch64-apple-darwin x86_64-pc-windows-gnu; do
        rustup target add "$system" >/dev/null 2>&1
        for features in std scheduler,tracing,futures-io,tokio-io,capi; do
            nice -n 10 cargo check -q -j2 --target "$system" --target-dir "$target/portable" --features "$features"
        done
    done
    # Without the tests that wake in signal handlers.
    RUSTFLAGS="--cfg heddle_portable" nice -n 10 cargo test -j2 --target-dir "$target/portable" \
        --features futures-io,tokio-io --test reactor --test wait --test library --test foreign --test soundness "$@"
}

publish() {
    publishable heddle-coroutine
}

semver() {
    compatible heddle-coroutine "$@"
}

object() {
    nice -n 10 cargo test -j2 --test object "$@"
}

features() {
    nice -n 10 cargo test -j2 --features tracing,futures-io,tokio-io --test tracing --test library --test foreign "$@"
    for features in "" alloc alloc,scheduler alloc,tracing capi std std,scheduler std,futures-io std,tokio-io; do
        nice -n 10 cargo build -j2 --no-default-features --features "$features"
    done
}

long() {
    HEDDLE_LONG=1 schedules
    HEDDLE_LONG=1 nice -n 10 cargo test -j2 --release --test random --test hostile --test machine --test executors --test limits "$@"
}

msrv() {
    local oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../../Cargo.toml)
    cargo "+$oldest" --version >/dev/null 2>&1 || rustup toolchain install "$oldest" --profile minimal
    nice -n 10 cargo "+$oldest" test -j2 --target-dir "$target/msrv" "$@"
    nice -n 10 cargo "+$oldest" build -j2 --target-dir "$target/msrv" --no-default-features --features capi
}

"${@:?what to check: loom, schedules, weaken, miri, tsan, ecosystem, fuzz, portable, publish, semver, object, features, long or msrv}"
