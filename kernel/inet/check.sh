#!/usr/bin/env bash
# Checks of the TCP/IP engine beyond its tests.
#   schedules [NAME]  calls, packets and timers at once, on threads that shuttle switches at each lock
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

schedules() {
    SHUTTLE_SILENCE_WARNINGS=1 RUSTFLAGS="--cfg heddle_shuttle" nice -n 10 cargo test -j2 --release --lib \
        --target-dir "$target/shuttle" --quiet -- schedules "$@"
}

"${@:?what to check: schedules}"
