#!/usr/bin/env bash
# Weakens each ordering once, in a copy, and expects a model to fail: one line of `weaken.txt` a weakening,
#   FILE | TEXT | WEAKER TEXT | MODEL
# A weakening that no model notices, or a line that no longer matches the source, fails this script.
#   weaken.sh [TEXT]   only the lines that contain TEXT
set -u
cd "$(dirname "$0")"
target=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")/weaken-range-lock
copy=$target/crate
noticed=0 survivors=0
while IFS='|' read -r file text weaker model; do
    case $file in '' | \#*) continue ;; esac
    file=$(echo $file) model=$(echo $model)
    text=$(printf '%b' "${text# }") weaker=$(printf '%b' "${weaker# }")
    text=${text% } weaker=${weaker% }
    case "$file $text" in *"${1:-}"*) ;; *) continue ;; esac
    rm -rf "$copy" && mkdir -p "$copy"
    cp -r src tests examples "$copy/"
    sed -e '/^readme/d' -e 's/^version.workspace.*/version = "0.1.0"/' -e 's/^edition.workspace.*/edition = "2024"/' \
        -e '/workspace = true/d' -e '/^\[lints\]/d' -e '/^proptest/d' Cargo.toml >"$copy/Cargo.toml"
    echo '[workspace]' >>"$copy/Cargo.toml"
    find "$copy/tests" -name '*.rs' ! -name loom.rs ! -path '*/models/*' -delete
    if ! FROM=$text TO=$weaker perl -0pi -e \
        'BEGIN { $found = 0 } $found += s/\Q$ENV{FROM}\E/$ENV{TO}/; END { exit !$found }' "$copy/src/$file"; then
        echo "NOT FOUND  $file: $text"
        survivors=$((survivors + 1))
        continue
    fi
    if (cd "$copy" && RUSTFLAGS="--cfg heddle_loom" CARGO_TARGET_DIR=$target/target RUST_BACKTRACE=0 \
        timeout 600 nice -n 15 cargo test -q --release --test loom "$model" </dev/null >"$target/log" 2>&1); then
        echo "UNNOTICED  $file: $text"
        survivors=$((survivors + 1))
    elif grep -q 'could not compile' "$target/log"; then
        echo "NOT BUILT  $file: $text"
        survivors=$((survivors + 1))
    elif ! grep -q '^error: test failed' "$target/log"; then
        # The time was up, or cargo itself failed: no model has noticed anything.
        echo "NOT RUN    $file: $text"
        survivors=$((survivors + 1))
    else
        noticed=$((noticed + 1))
        echo "noticed    $file: $text -> $weaker ($model)"
    fi
done <weaken.txt
echo "weaken: $noticed noticed, $survivors not"
[ $noticed -gt 0 ] && [ $survivors -eq 0 ]
