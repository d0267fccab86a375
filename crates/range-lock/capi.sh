#!/usr/bin/env bash
# Builds the static and the shared library, installs them with header and pkg-config file under PREFIX (a folder in
# the target directory unless given), and builds and runs the C++ example against both.
#   capi.sh [PREFIX]
# The shared library is libheddle_range_lock.so.VERSION. Programs that are linked with it ask for the version up to the
# number whose change may break them: the first, or the second as long as the first is 0.
set -eu
cd "$(dirname "$0")"
target=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")
prefix=$(realpath -m "${1:-$target/capi}")
version=$(cargo metadata --no-deps --format-version 1 |
    grep -o '"name":"heddle-range-lock","version":"[^"]*"' | head -1 | cut -d'"' -f8)

case $version in
0.*) interface=${version%.*} ;;
*) interface=${version%%.*} ;;
esac
name=libheddle_range_lock.so

cargo rustc -q --release -p heddle-range-lock --features capi --crate-type staticlib
soname=()
[[ $(uname) != Linux ]] || soname=(-C "link-arg=-Wl,-soname,$name.$interface")
cargo rustc -q --release -p heddle-range-lock --features capi --crate-type cdylib -- -C strip=symbols "${soname[@]}"
mkdir -p "$prefix/lib/pkgconfig" "$prefix/include"
cp "$target/release/libheddle_range_lock.a" "$prefix/lib/"
# Not written over: programs that run have it mapped.
cp "$target/release/$name" "$prefix/lib/$name.$version.new"
mv "$prefix/lib/$name.$version.new" "$prefix/lib/$name.$version"
ln -sf "$name.$version" "$prefix/lib/$name.$interface"
ln -sf "$name.$interface" "$prefix/lib/$name"
! command -v strip >/dev/null || strip --strip-debug "$prefix/lib/libheddle_range_lock.a"
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
# As an installation without the files for development has it.
mkdir -p "$prefix/runtime"
rm -f "$prefix/runtime/"*
cp "$prefix/lib/$name.$interface" "$prefix/runtime/$name.$interface"
LD_LIBRARY_PATH=$prefix/runtime "$prefix/blocks-shared"
"$prefix/blocks-static"
