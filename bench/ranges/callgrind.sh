#!/usr/bin/env bash
# Instructions of one lock+unlock pair on one thread, by callgrind: the same on a busy machine as on a quiet one.
#   callgrind.sh [SIDE...]
set -euo pipefail
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-../../target}
cargo build -q --release -p heddle-range-lock-bench --example one
[[ $# -gt 0 ]] || set -- heddle mutex+map song kogan kara

# Instructions of a run of so many operations.
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$target/release/examples/one" "$1" "$2" 0 "$4" "$3" 2>&1 |
        sed -n 's/.*Collected : //p'
}

few=20000 many=60000
printf '%-14s' workload
printf '%12s' "$@"
echo
for row in "w1 0" "held 1" "held 10" "held 100" "held 1000" "w2 0"; do
    read -r kind number <<<"$row"
    printf '%-14s' "$row"
    for side in "$@"; do
        printf '%12s' $((($(instructions "$side" "$kind" "$number" $many) -
            $(instructions "$side" "$kind" "$number" $few)) / (many - few)))
    done
    echo
done
