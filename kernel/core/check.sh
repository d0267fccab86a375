#!/usr/bin/env bash
# The checks of heddle-kernel-core that `cargo test` does not make:
#   check.sh loom [MODEL]    every interleaving of the real protocols, or of one model
#   check.sh weaken [TEXT]   weakens each ordering of weaken.txt once, in a copy, and expects a model to fail (a text:
#                            only lines that contain it)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")
export RUSTFLAGS="--cfg heddle_loom"

loom() {
    nice -n 15 cargo test --release --lib --target-dir "$target/loom" --quiet -- --nocapture models "$@"
}

# A line of weaken.txt: FILE | TEXT | WEAKER TEXT | MODEL. The text must occur in the file, and all its places change.
weaken() {
    local copy=$target/weaken/kernel-core noticed=0 survivors=0 file text weaker model
    mkdir -p "$copy"
    while IFS='@' read -r file text weaker model; do
        case $file in '' | \#*) continue ;; esac
        file=${file// /} model=${model// /}
        text=$(printf '%b' "${text# }") weaker=$(printf '%b' "${weaker# }")
        text=${text% } weaker=${weaker% }
        [[ "$file $text" == *"${1:-}"* ]] || continue
        rm -rf "$copy/crates" && mkdir -p "$copy/crates"
        cp -r . "$copy/crates/core"
        cp -r ../../abi ../../crates/range-lock "$copy/crates/"
        sed -n '/^\[workspace.package\]/,/^$/p; /^\[workspace.lints/,/^$/p' ../../Cargo.toml >"$copy/lines"
        {
            printf '[workspace]\nmembers = ["crates/*"]\nresolver = "3"\n\n'
            cat "$copy/lines"
            sed -n '/^\[workspace.dependencies\]/,/^$/{ /path = /d; p }' ../../Cargo.toml
            printf 'heddle-abi = { path = "crates/abi" }\n'
            printf 'heddle-range-lock = { path = "crates/range-lock", default-features = false }\n'
        } >"$copy/Cargo.toml"
        local result
        if ! FROM=$text TO=$weaker perl -0pi -e \
            'BEGIN { $found = 0 } $found += s/\Q$ENV{FROM}\E/$ENV{TO}/g; END { exit !$found }' \
            "$copy/crates/core/src/$file"; then
            result="NOT FOUND"
        elif (cd "$copy/crates/core" && RUST_BACKTRACE=0 timeout 120 nice -n 15 cargo test --release --lib --quiet \
            --target-dir "$target/weaken/target" -- --test-threads=1 "$model" </dev/null >"$copy/log" 2>&1); then
            result="UNNOTICED"
        elif grep -q 'could not compile\|error: ' "$copy/log" && ! grep -q 'test result: FAILED' "$copy/log"; then
            result="NOT BUILT"
        else
            result="noticed"
        fi
        if [[ $result == noticed ]]; then noticed=$((noticed + 1)); else survivors=$((survivors + 1)); fi
        printf '%-10s %s: %q (%s)\n' "$result" "$file" "$text" "$model"
    done < <(sed -e 's,\\|,\x01,g' -e 's,|,@,g' -e 's,\x01,|,g' weaken.txt)
    echo "weaken: $noticed noticed, $survivors not"
    ((noticed > 0 && survivors == 0))
}

case ${1:-} in
    loom | weaken) "$@" ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]##*/}"; exit 2 ;;
esac
