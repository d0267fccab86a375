#!/usr/bin/env bash
# containerd with heddle-oci behind its runc shim, on an image made of this host's programs, by `ctr`.
source "$(dirname "$0")/lib.sh"
unset XDG_RUNTIME_DIR
if ! command -v containerd ctr >/dev/null; then echo "skip containerd: not installed"; rm -rf "$WORK"; exit; fi
if ((EUID)); then echo "skip containerd: it needs root"; rm -rf "$WORK"; exit; fi

# A daemon of our own: what the host has is not touched. Sockets have short paths.
ln -s "$HEDDLE" "$WORK/heddle-oci"
socket=$WORK/containerd.sock
cat >"$WORK/config.toml" <<END
version = 2
root = "$WORK/lib"
state = "$WORK/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "$socket"
[ttrpc]
  address = "$socket.ttrpc"
END
containerd -c "$WORK/config.toml" >"$WORK/daemon" 2>&1 &
echo $! >"$WORK/daemon-pid"
ctr=(ctr -a "$socket" -n test)
c() { timeout 120 "${ctr[@]}" "$@"; }
machine=(--runtime io.containerd.runc.v2 --runc-binary "$WORK/heddle-oci" --runc-root "$WORK/runc")
run=(run --rm "${machine[@]}")

finish() {
    local name
    for name in $(c containers ls -q 2>/dev/null); do
        c task rm -f "$name"
        c containers rm "$name"
    done >/dev/null 2>&1
    # The check ran in a shell of its own.
    kill "$(cat "$WORK/daemon-pid")"
    wait
    umount -l "$WORK"/state/io.containerd.runtime.v2.task/test/*/rootfs
    rm -rf "$WORK"
} 2>/dev/null
trap finish EXIT

# An archive as `docker save` and `podman save` write it: one layer and its description.
make_image() {
    local image=$WORK/image
    mkdir -p "$image"
    root_of_host "$WORK/root" echo cat ls id sleep mkdir rm touch stat wc tty stty grep hostname
    tar -C "$WORK/root" -cf "$image/layer.tar" .
    cat >"$image/config.json" <<END
{"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin", "FROM=image"], "Cmd": ["echo", "default"],
 "WorkingDir": "/home"},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum <"$image/layer.tar" | cut -d' ' -f1)"]}}
END
    echo '[{"Config": "config.json", "RepoTags": ["localhost/test:latest"], "Layers": ["layer.tar"]}]' >"$image/manifest.json"
    tar -C "$image" -cf "$WORK/image.tar" manifest.json config.json layer.tar
    c image import "$WORK/image.tar"
}
image=localhost/test:latest

is_running() { c task ls | grep -q "^$1 .*RUNNING"; }
is_stopped() { c task ls | grep -q "^$1 .*STOPPED"; }

# removed STATUS NAME: a task that has ended is deleted, and its status told.
removed() {
    local said
    said=$(c task rm "$2" 2>&1)
    [[ $said == *"exit code $1"* ]] || { echo "$said"; return 1; }
}

runs() {
    expect "hi" "$(c "${run[@]}" "$image" one echo hi)"
    expect "default" "$(c "${run[@]}" "$image" one)"
    expect "image /home b" "$(c "${run[@]}" --env A=b "$image" one sh -c 'echo $FROM $(pwd) $A')"
    status 5 c "${run[@]}" "$image" one sh -c 'exit 5'
    status 137 c "${run[@]}" "$image" one sh -c 'kill -9 $$'
    expect "out" "$(c "${run[@]}" "$image" one sh -c 'echo out; echo err >&2' 2>"$WORK/err")"
    expect "err" "$(cat "$WORK/err")"
    expect "input" "$(echo input | c "${run[@]}" "$image" one cat)"
    # A name that is free again each time, and no task left.
    expect "" "$(c task ls -q)"
    if c "${run[@]}" "$image" one no-such-program; then return 1; fi
    expect "" "$(c task ls -q)"
}

# The steps one by one, as an orchestrator takes them.
steps() {
    c run -d "${machine[@]}" "$image" steps sh -c 'trap "exit 9" TERM; echo up > /tmp/up; while :; do sleep 0.1; done'
    wait_for is_running steps
    wait_for c task exec --exec-id a steps cat /tmp/up
    expect "from-exec" "$(c task exec --exec-id b steps echo from-exec)"
    status 7 c task exec --exec-id c steps sh -c 'exit 7'
    expect "input" "$(echo input | c task exec --exec-id d steps cat)"
    expect "1000 /tmp" "$(c task exec --exec-id e --user 1000:1000 --cwd /tmp steps sh -c 'echo $(id -u) $(pwd)')"
    [[ $(c task ps steps | tail -n +2 | wc -l) -ge 1 ]]
    # A running task is not deleted.
    if c task rm steps; then return 1; fi
    c task kill -s TERM steps
    wait_for is_stopped steps
    removed 9 steps
    # The container is still there, and what it wrote.
    c task start -d steps
    wait_for is_running steps
    expect "up" "$(c task exec --exec-id f steps cat /tmp/up)"
    c task kill -s KILL steps
    wait_for is_stopped steps
    removed 137 steps
    c containers rm steps
}

many_programs() {
    c run -d "${machine[@]}" "$image" many sleep 1000
    wait_for is_running many
    local pids=() entry found
    for number in $(seq 10); do
        c task exec --exec-id "m$number" many sh -c "cat; exit $number" <<<"text $number" >"$WORK/many-$number" &
        pids+=("$!:$number")
    done
    for entry in "${pids[@]}"; do
        found=0
        wait "${entry%:*}" || found=$?
        expect "${entry#*:}" "$found"
        expect "text ${entry#*:}" "$(cat "$WORK/many-${entry#*:}")"
    done
    c task rm -f many || expect 137 $?
    c containers rm many
}

a_terminal() {
    local output
    output=$(script -qec "stty rows 33 cols 99; timeout 120 ${ctr[*]} ${run[*]} -t $image term sh -c 'tty; sleep 1; stty size; exit 4'" \
        /dev/null </dev/null | tr -d '\r') || expect 4 $?
    [[ $output == *"/dev/console"* && $output == *"33 99"* ]] || { echo "$output"; return 1; }
}

folders() {
    mkdir -p "$WORK/volume"
    echo here >"$WORK/volume/file"
    local bind=(--mount "type=bind,src=$WORK/volume,dst=/data,options=rbind:rw")
    expect here "$(c "${run[@]}" "${bind[@]}" "$image" volume sh -c 'cat /data/file; mkdir /data/made')"
    [[ -d $WORK/volume/made ]]
    status 1 c "${run[@]}" --read-only "$image" volume touch /no
    bind=(--mount "type=bind,src=$WORK/volume,dst=/data,options=rbind:ro")
    status 1 c "${run[@]}" "${bind[@]}" "$image" volume touch /data/no
}

# A machine's size follows the limits that an orchestrator sets.
size_of_the_machine() {
    expect 2 "$(c "${run[@]}" --cpus 2 "$image" size grep -c ^processor /proc/cpuinfo)"
    local kib
    kib=$(c "${run[@]}" --memory-limit 67108864 "$image" size cat /proc/meminfo | grep -o '^MemTotal: *[0-9]*' | grep -o '[0-9]*$')
    ((kib > 60000 && kib < 100000)) || { echo "MemTotal $kib"; return 1; }
    expect 3 "$(c "${run[@]}" --annotation heddle.smp=3 "$image" size grep -c ^processor /proc/cpuinfo)"
}

# The daemon may go and come while containers run.
the_daemon_restarts() {
    c run -d "${machine[@]}" "$image" stays sleep 1000
    wait_for is_running stays
    local daemon
    daemon=$(cat "$WORK/daemon-pid")
    kill "$daemon"
    wait_for sh -c "! kill -0 $daemon"
    containerd -c "$WORK/config.toml" >>"$WORK/daemon" 2>&1 &
    echo $! >"$WORK/daemon-pid"
    wait_for c version
    is_running stays
    expect still "$(c task exec --exec-id a stays echo still)"
    c task rm -f stays || expect 137 $?
    c containers rm stays
}

if ! { wait_for c version && make_image; } >"$WORK/log" 2>&1; then
    echo "not ok an image: $(tail -c 300 "$WORK/log" "$WORK/daemon" | tr '\n' ' ')"
    exit
fi
check "runs, statuses, streams" runs
check "create, exec, kill, delete, start again" steps
check "ten programs at once" many_programs
check "a terminal" a_terminal
check "folders of the host, read-only roots" folders
check "limits and annotations make the machine's size" size_of_the_machine
check "the daemon restarts" the_daemon_restarts
