#!/usr/bin/env bash
# Builds the static and the shared library, installs them with header and pkg-config file under PREFIX (a folder in
# the target directory unless given), and builds and runs the C++ example against both.
#   capi.sh [PREFIX]
set -eu
cd "$(dirname "$0")"
target=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")
prefix=$(realpath -m "${1:-$target/capi}")
version=$(cargo metadata --no-deps --format-version 1 |
    grep -o '"name":"heddle-range-lock","version":"[^"]*"' | head -1 | cut -d'"' -f8)

for kind in staticlib cdylib; do
    cargo rustc -q --release -p heddle-range-lock --features capi --crate-type "$kind"
done
mkdir -p "$prefix/lib/pkgconfig" "$prefix/include"
cp "$target/release/libheddle_range_lock.a" "$target/release/libheddle_range_lock.so" "$prefix/lib/"
cp include/heddle_range_lock.h "$prefix/include/"
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" heddle-range-lock.pc.in \
    >"$prefix/lib/pkgconfig/heddle-range-lock.pc"

cxx=${CXX:-c++}
if ! command -v "$cxx" >/dev/null; then
    echo "capi: no C++ compiler, the example is not tried"
    exit 0
fi
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    flags=$(pkg-config --cflags --libs heddle-range-lock)
else
    flags="-I$prefix/include -L$prefix/lib -lheddle_range_lock"
fi
warnings="-std=c++17 -O2 -Wall -Wextra -Werror"
# shellcheck disable=SC2086 # Flags are words.
"$cxx" $warnings examples/blocks.cpp -o "$prefix/blocks-shared" $flags -pthread
# shellcheck disable=SC2086
"$cxx" $warnings examples/blocks.cpp -I"$prefix/include" "$prefix/lib/libheddle_range_lock.a" \
    -o "$prefix/blocks-static" -pthread -ldl -lm
LD_LIBRARY_PATH=$prefix/lib "$prefix/blocks-shared"
"$prefix/blocks-static"
