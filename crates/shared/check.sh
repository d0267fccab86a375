#!/usr/bin/env bash
# The checks of heddle-shared that `cargo test` does not make; run anywhere inside of the repository.
#   loom [MODEL]    every interleaving of the real protocols, or of one model
#   weaken [NAME]   the orderings of weaken.list, weakened one by one: each must make its model fail
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

loom() {
    RUSTFLAGS="--cfg heddle_loom" nice -n 10 cargo test -j2 --release --lib --target-dir "$target/loom" --quiet -- models "$@"
}

# A copy of the crate in which one line is changed, with which its model must fail.
weaken() {
    local copy="$target/weaken-shared" failed=0 name
    mkdir -p "$copy"
    while read -r name; do
        rm -rf "$copy/src" && cp -r src "$copy/src"
        python3 ../coroutine/weaken.py "$name" "$copy" || { failed=1; continue; }
        local model run
        model=$(cat "$copy/model")
        cp ../../Cargo.lock "$copy/Cargo.lock"
        run=(env RUSTFLAGS="--cfg heddle_loom" nice -n 10 cargo test -j2 --release --quiet --offline
            --manifest-path "$copy/Cargo.toml" --lib --target-dir "$target/loom")
        if ! "${run[@]}" --no-run >"$copy/log" 2>&1; then
            echo "$name: does not build"; tail -20 "$copy/log"; failed=1
        elif timeout 300 "${run[@]}" -- "$model" >"$copy/log" 2>&1; then
            echo "$name: NOT NOTICED by $model"; failed=1
        else
            echo "$name: noticed by $model"
        fi
    done < <(if [ $# -gt 0 ]; then printf '%s\n' "$@"; else grep -v '^#' weaken.list | cut -d'|' -f1; fi)
    return $failed
}

case ${1:-} in
    loom | weaken) "$@" ;;
    *) sed -n '2,4s/^# *//p' "${BASH_SOURCE[0]##*/}"; exit 2 ;;
esac
