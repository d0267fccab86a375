#!/usr/bin/env bash
# What the front door says when it installs packages, with an apt-get that only pretends.
source "$(dirname "$0")/lib.sh"
trap 'rm -rf "$WORK"' EXIT
mkdir -p "$WORK/bin" "$WORK/clone"
cat >"$WORK/bin/apt-get" <<'END'
#!/bin/sh
echo "Reading package lists..."
case "$*" in *Status-Fd*) echo "pmstatus:gcc:50.5:Unpacking gcc" ;; esac
[ ! -e "$FAILS" ] || { echo "E: Unable to locate package gcc" >&2; exit 100; }
END
cat >"$WORK/bin/sudo" <<'END'
#!/bin/sh
exec "$@"
END
chmod +x "$WORK"/bin/*
# The script's functions, in front of what they would do in a clone without a compiler.
cat >"$WORK/script" <<END
set -euo pipefail
root=$WORK/clone log=$WORK/clone/target/heddle-setup.log
$(sed -n '/^say()/,/^build()/p' "$(dirname "$0")/../../heddle" | sed '$d')
command() { [[ \$2 != cc && \$2 != qemu* ]] && builtin command "\$@"; }
install_packages
echo installed
END
setup() { FAILS=$WORK/fails PATH=$WORK/bin:$PATH "$@" </dev/null; }
says="heddle: these Debian packages are missing and will be installed: qemu-system-x86 gcc libc6-dev"

one_line() {
    expect installed "$(setup bash "$WORK/script" 2>"$WORK/said")"
    expect "$says" "$(cat "$WORK/said")"
    grep -q "Reading package lists" "$WORK/clone/target/heddle-setup.log"
}

a_terminal() {
    local output
    # Its standard input is none, so nobody is asked.
    output=$(setup script -qec "bash '$WORK/script' </dev/null" /dev/null | tr -d '\r')
    [[ $output == *"[---------------               ]  50% Unpacking gcc"*installed ]] || { echo "$output"; return 1; }
    [[ $output != *Reading* ]]
}

a_failure() {
    touch "$WORK/fails"
    status 125 setup bash "$WORK/script"
    expect "$says" "$(head -n 1 "$WORK/status-output")"
    expect "E: Unable to locate package gcc" "$(sed -n 2p "$WORK/status-output")"
    [[ $(sed -n 3p "$WORK/status-output") == *"apt could not install them"*heddle-setup.log ]]
}

check "packages are installed, in one line" one_line
check "how far it has come, on a terminal" a_terminal
check "packages that cannot be installed" a_failure
