# Sourced by check.sh, here and in heddle-abi, in the crate's folder: runs the list of weakened orderings.

# weakened COPY FLAGS [NAME...]: for each name, or each of weaken.list, a copy of the crate in which that line is changed,
# with which its model must fail. FLAGS are those with which the models are built. Needs `target`.
weakened() {
    local copy=$1 failed=0 name model run
    local -a flags
    read -ra flags <<<"$2"
    shift 2
    mkdir -p "$copy"
    while read -r name; do
        rm -rf "$copy/src" && cp -r src "$copy/src"
        python3 "$(dirname "${BASH_SOURCE[0]}")/weaken.py" "$name" "$copy" || { failed=1; continue; }
        model=$(cat "$copy/model")
        # The same flags, folder and versions as the models have, so that what they need is built once.
        cp "$(git rev-parse --show-toplevel)/Cargo.lock" "$copy/Cargo.lock"
        run=(env RUSTFLAGS="--cfg heddle_loom" nice -n 10 cargo test -j2 --release --quiet --offline
            --manifest-path "$copy/Cargo.toml" "${flags[@]}" --target-dir "$target/loom")
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
