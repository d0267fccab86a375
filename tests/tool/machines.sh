#!/usr/bin/env bash
# Machines with names: further programs in them, their list, their end.
source "$(dirname "$0")/lib.sh"
trap 'try "$HEDDLE" rm -f one two logs 2>/dev/null; rm -rf "$WORK"' EXIT

start() { try "$HEDDLE" run --net none --name "$1" -d -- "${@:2}" >/dev/null; }

status_and_streams() {
    start one sleep 1000
    expect hi "$(try "$HEDDLE" exec one -- /bin/echo hi)"
    status 7 try "$HEDDLE" exec one -- sh -c 'exit 7'
    status 137 try "$HEDDLE" exec one -- sh -c 'kill -9 $$'
    status 127 try "$HEDDLE" exec one -- no-such-program
    status 126 try "$HEDDLE" exec one -- /etc/passwd
    expect "out" "$(try "$HEDDLE" exec one -- sh -c 'echo out; echo err >&2' 2>"$WORK/err")"
    expect "err" "$(cat "$WORK/err")"
    # Without -i there is no input.
    expect "" "$(echo input | try "$HEDDLE" exec one -- cat)"
}

data_both_ways() {
    head -c 3000000 /dev/urandom >"$WORK/data"
    try "$HEDDLE" exec -i one -- cat <"$WORK/data" | cmp - "$WORK/data"
    # A reader that goes ends the writer; one that waits holds up nobody else.
    expect y "$(try "$HEDDLE" exec one -- yes | head -1)"
    try "$HEDDLE" exec one -- sh -c 'head -c 2000000 /dev/zero; echo done >&2' 2>"$WORK/done" | { sleep 1; cat; } |
        wc -c >"$WORK/count" &
    local slow=$!
    expect quick "$(try "$HEDDLE" exec one -- echo quick)"
    wait "$slow"
    expect 2000000 "$(cat "$WORK/count")"
    expect done "$(cat "$WORK/done")"
}

many_at_once() {
    local pids=()
    for number in $(seq 20); do
        try "$HEDDLE" exec -i one -- sh -c "cat; exit $number" <<<"text $number" >"$WORK/many-$number" &
        pids+=("$!:$number")
    done
    for entry in "${pids[@]}"; do
        local found=0
        wait "${entry%:*}" || found=$?
        expect "${entry#*:}" "$found"
        expect "text ${entry#*:}" "$(cat "$WORK/many-${entry#*:}")"
    done
}

who_and_where() {
    expect "1000 100 /tmp b" "$(try "$HEDDLE" exec -u 1000:100 -w /tmp -e A=b one -- sh -c 'echo $(id -u) $(id -g) $(pwd) $A')"
    expect nobody "$(try "$HEDDLE" exec -u nobody one -- id -un)"
    status 125 try "$HEDDLE" exec -u no-such-user one -- true
    status 125 try "$HEDDLE" exec -w /no/such one -- true
    expect "65534" "$(try "$HEDDLE" run --net none -u nobody -- id -u)"
}

a_terminal() {
    local output
    output=$(try script -qec "stty rows 33 cols 99; '$HEDDLE' exec -it one -- sh -c 'tty; stty size; exit 4'" /dev/null </dev/null |
        tr -d '\r') || expect 4 $?
    [[ $output == *"/dev/pts/"* && $output == *"33 99"* ]] || { echo "$output"; return 1; }
    status 125 try "$HEDDLE" exec -t one -- true </dev/null
}

list_and_stop() {
    [[ $(try "$HEDDLE" ps) == *"one"*"running"*"heddle"*"sleep 1000"* ]]
    [[ $(try "$HEDDLE" ps --json) == *'"name": "one"'* ]]
    status 125 try "$HEDDLE" run --name one -- true
    try "$HEDDLE" stop one
    [[ $(try "$HEDDLE" ps) != *one* ]]
    [[ $(try "$HEDDLE" ps -a) == *"one"*"exited (143)"* ]]
    status 125 try "$HEDDLE" exec one -- true
    try "$HEDDLE" rm one
    [[ $(try "$HEDDLE" ps -a) != *one* ]]
    # The program hears of it first, and one that does not listen is ended.
    start two sh -c 'trap "echo told" TERM; echo ready; while :; do sleep 0.1; done'
    wait_for sh -c "'$HEDDLE' logs two | grep -q ready"
    try "$HEDDLE" stop -t 5 two
    expect "ready told" "$(try "$HEDDLE" logs two | tr '\n' ' ' | sed 's/ $//')"
    try "$HEDDLE" rm two
}

logs_and_signals() {
    start logs sh -c 'trap "echo usr1; exit 3" USR1; echo out; echo err >&2; while :; do sleep 0.1; done'
    wait_for sh -c "'$HEDDLE' logs logs | grep -q err"
    try "$HEDDLE" logs -f logs >"$WORK/followed" &
    local follower=$!
    try "$HEDDLE" kill -s USR1 logs
    wait "$follower"
    expect "out err usr1" "$(tr '\n' ' ' <"$WORK/followed" | sed 's/ $//')"
    [[ $(try "$HEDDLE" ps -a) == *"exited (3)"* ]]
    try "$HEDDLE" rm logs
}

gone_processes() {
    start one sleep 1000
    local pid
    pid=$(try "$HEDDLE" ps --json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
    kill -9 "$pid"
    wait_for sh -c "! '$HEDDLE' ps | grep -q one"
    # The name is free again.
    start one sleep 1000
    try "$HEDDLE" rm -f one
}

copies() {
    start one sleep 1000
    mkdir -p "$WORK/tree/sub"
    echo text >"$WORK/tree/sub/file"
    ln -s sub/file "$WORK/tree/link"
    try "$HEDDLE" cp "$WORK/tree" one:/tmp
    expect text "$(try "$HEDDLE" exec one -- cat /tmp/tree/link)"
    try "$HEDDLE" exec one -- sh -c 'echo changed > /tmp/tree/sub/file'
    try "$HEDDLE" cp one:/tmp/tree "$WORK/back"
    expect changed "$(cat "$WORK/back/link")"
    try "$HEDDLE" cp one:/tmp/tree/sub/file "$WORK/single"
    expect changed "$(cat "$WORK/single")"
    status 125 try "$HEDDLE" cp one:/no/such "$WORK/x"
    try "$HEDDLE" rm -f one
}

check "statuses and streams of a further program" status_and_streams
check "data passes both ways with back pressure" data_both_ways
check "twenty programs at once" many_at_once
check "user, directory, environment" who_and_where
check "a terminal for a further program" a_terminal
check "machines are listed and stopped" list_and_stop
check "logs and signals" logs_and_signals
check "a machine whose process is killed" gone_processes
check "files are copied in and out" copies
