# For the scripts beside this file: each test is a function, and prints one line. HEDDLE is the tool, WORK a folder that
# goes with the script.
set -u
WORK=$(mktemp -d)
export XDG_RUNTIME_DIR=$WORK/run
mkdir -m 700 "$XDG_RUNTIME_DIR"

# check NAME FUNCTION: runs a test in a shell of its own, with a deadline on each command that `try` runs.
check() {
    local output
    if [[ -n ${FILTER:-} && $1 != *"$FILTER"* ]]; then return; fi
    # Not as the condition itself, where `set -e` has no effect.
    output=$(set -e; "$2" 2>&1)
    if (($? == 0)); then
        echo "ok $1"
    else
        echo "not ok $1: $(tr '\n' ' ' <<<"$output" | tail -c 600)"
    fi
}

try() { timeout 120 "$@"; }

# expect EXPECTED FOUND
expect() {
    [[ $1 == "$2" ]] || { echo "expected '$1', found '$2'"; return 1; }
}

# status EXPECTED COMMAND...
status() {
    local expected=$1 found=0
    shift
    "$@" >"$WORK/status-output" 2>&1 || found=$?
    [[ $found == "$expected" ]] || { echo "status $found, expected $expected: $(cat "$WORK/status-output")"; return 1; }
}

# wait_for COMMAND...: until it succeeds.
wait_for() {
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "never came true: $*"
    return 1
}

# root_of_host FOLDER PROGRAM...: a root tree of programs of this host, with bash as its shell, and two users.
root_of_host() {
    local root=$1 program path
    shift
    mkdir -p "$root"/{bin,etc,tmp,root,home,proc,sys,dev,var}
    chmod 1777 "$root/tmp"
    for program in bash "$@"; do
        path=$(readlink -f "$(type -P "$program")")
        cp "$path" "$root/bin/$program"
        ldd "$path" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
    ln -s bash "$root/bin/sh"
    printf 'root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home:/bin/sh\n' >"$root/etc/passwd"
    printf 'root:x:0:\nann:x:1000:\n' >"$root/etc/group"
}
