#!/usr/bin/env bash
# The checks of the kernel that its build does not make:
#   check.sh lint      the lints, among them that no allocation ends the machine (clippy.toml)
#   check.sh clones    no collection is cloned, which clippy cannot see
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

target=x86_64-unknown-none
# Places of the libraries of crates/ that clippy.toml forbids in the kernel. The kernel uses nothing of `wait`; the
# others have reserved the room.
known='^crates/(coroutine/src/wait/[a-z_]*|range-lock/src/inspect|tty/src/(echo|input))\.rs:'

lint() {
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    cargo clippy --quiet --target "$target"
    local crate found
    for crate in coroutine range-lock erofs tty dhcp; do
        local features=()
        [[ $crate != coroutine ]] || features=(--features alloc,scheduler)
        found=$(CLIPPY_CONF_DIR=$PWD cargo clippy --quiet --message-format short -p "heddle-$crate" \
            --no-default-features "${features[@]}" --target "$target" 2>&1 |
            grep -F 'use of a disallowed' | grep -vE "$known" || true)
        [[ -z $found ]] || { printf 'check.sh: %s\n' "$found" >&2; return 1; }
    done
}

# An instance of a collection's `clone` is a symbol of the kernel that was built without optimization.
clones() {
    command -v nm >/dev/null || { echo "check.sh: there is no nm (Debian: binutils)" >&2; return 1; }
    local folder=../target/clones found
    CARGO_PROFILE_DEV_DEBUG=0 cargo build --quiet --target "$target" --target-dir "$folder" \
        --config "target.$target.rustflags=[\"-Csymbol-mangling-version=v0\"]"
    local binary=$folder/$target/debug/heddle-kernel
    # Others are there, so the names are read as they should be.
    nm --demangle "$binary" | grep ' <alloc::sync::Arc<.* as core::clone::Clone>::clone$' >/dev/null
    local collection='(alloc::(vec|string|collections|boxed|borrow)|hashbrown|smallvec)::'
    found=$(nm --demangle "$binary" | grep -E " <$collection.* as core::clone::Clone>::clone\$" || true)
    [[ -z $found ]] || { printf 'check.sh: a collection is cloned: %s\n' "$found" >&2; return 1; }
}

case ${1:-} in
lint) lint ;;
clones) clones ;;
*) sed -n '2,4s/^# \?//p' "$0" >&2; exit 2 ;;
esac
