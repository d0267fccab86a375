# Sourced by the check.sh of the crates that are published: fuzzing with libFuzzer, on the compiler that builds everything
# else; ThreadSanitizer; whether they can be published, and whether what is in there breaks those who use the last release.

# fuzzed CRATE TARGET SECONDS: builds the fuzz target of `CRATE-fuzz` with coverage, assertions and overflow checks, and
# runs it for so long. What it learns stays in the build folder, and each run begins with it. An input that fails is
# written to a file which the run names; `fuzzed CRATE TARGET FILE` runs that one. Needs `target`, and a C++ compiler.
fuzzed() {
    local crate=$1 name=$2 what=${3:-60} host flags corpus log
    host=$(rustc -vV | sed -n 's/^host: //p')
    flags="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1"
    for flag in level=4 inline-8bit-counters pc-table trace-compares; do
        flags+=" -Cllvm-args=-sanitizer-coverage-$flag"
    done
    # The target is named so that compilers' plugins and build scripts are built without the flags.
    RUSTFLAGS=$flags nice -n 10 cargo build -q --profile checking -p "$crate-fuzz" --bin "$name" --target "$host" \
        --target-dir "$target/fuzz"
    corpus=$target/fuzz/corpus/$crate-$name
    mkdir -p "$corpus"
    if [[ -f $what ]]; then
        "$target/fuzz/$host/checking/$name" "$what"
        return
    fi
    log=$(mktemp)
    if ! nice -n 10 "$target/fuzz/$host/checking/$name" -max_total_time="$what" -max_len=512 -rss_limit_mb=1024 -timeout=60 \
        -artifact_prefix="$corpus-failure-" -print_final_stats=1 "$corpus" >"$log" 2>&1; then
        grep -vE '^#[0-9]+' "$log" | tail -60
        rm -f "$log"
        return 1
    fi
    sed -n "s/^stat::number_of_executed_units: */fuzz $crate $name: 0 failures, runs /p" "$log"
    rm -f "$log"
}

# sanitized CRATE ARGUMENTS...: runs tests of the crate under ThreadSanitizer, with a standard library that is built for it.
# It does not know fences: an ordering that rests on one is a report that need not be true. Needs `target`.
sanitized() {
    local crate=$1 host
    shift
    host=$(rustc -vV | sed -n 's/^host: //p')
    cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal --component rust-src
    RUSTFLAGS=-Zsanitizer=thread RUST_BACKTRACE=0 nice -n 10 cargo +nightly test -j2 --release -Zbuild-std \
        --target "$host" --target-dir "$target/tsan" -p "$crate" "$@"
}

# publishable CRATE [NEEDED...]: packs the crate and those that it needs and that are published with it, builds what was
# packed, and does everything of a publication but the upload. Needs `target`.
publishable() {
    local name packages=()
    for name in "$@"; do
        packages+=(-p "$name")
    done
    nice -n 10 cargo publish -q --dry-run --allow-dirty "${packages[@]}" --target-dir "$target/publish"
    echo "publish $1: can be published"
}

# compatible CRATE [BASE]: compares the crate's interface with that of a commit, by cargo-semver-checks; without one with
# the newest tag CRATE-vVERSION. A release that breaks users has another version. Before the first release there is
# nothing to keep to: then it tells what has changed since the commit of a day ago, if the tool is there. Needs `target`.
compatible() {
    local crate=$1 base=${2:-} is_released=yes
    [[ -n $base ]] || base=$(git tag --list "$crate-v*" --sort=-version:refname | head -n 1)
    if [[ -z $base ]]; then
        is_released=
        base=$(git rev-list -n 1 --first-parent --before='1 day ago' HEAD)
        if [[ -z $base ]] || ! cargo semver-checks --version >/dev/null 2>&1; then
            echo "semver $crate: not released yet; without cargo-semver-checks nothing is compared"
            return
        fi
    fi
    cargo semver-checks --version >/dev/null 2>&1 || nice -n 10 cargo install -q --locked cargo-semver-checks
    if CARGO_TARGET_DIR=$target/semver nice -n 10 cargo semver-checks -p "$crate" --baseline-rev "$base"; then
        echo "semver $crate: compatible with $base"
    elif [[ -z $is_released ]]; then
        echo "semver $crate: not released yet, so it may differ from $base"
    else
        return 1
    fi
}
