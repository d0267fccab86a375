#!/usr/bin/env bash
# Podman with heddle-oci as its runtime, on an image made of this host's programs.
source "$(dirname "$0")/lib.sh"
unset XDG_RUNTIME_DIR
if ! command -v podman >/dev/null; then echo "skip podman: not installed"; rm -rf "$WORK"; exit; fi
if ((EUID)); then echo "skip podman: only root's form is tested"; rm -rf "$WORK"; exit; fi

# Storage of its own: what the user has is not touched.
ln -s "$HEDDLE" "$WORK/heddle-oci"
podman=(podman --root "$WORK/storage" --runroot "$WORK/runroot" --runtime "$WORK/heddle-oci")
p() { timeout 120 "${podman[@]}" "$@"; }
trap 'p rm -af >/dev/null 2>&1; p rmi -af >/dev/null 2>&1; rm -rf "$WORK"' EXIT
run=(run --rm --network none)

make_image() {
    root_of_host "$WORK/root" echo cat ls id sleep mkdir rm touch stat wc tty stty grep ln mv chmod chown hostname sync df
    tar -C "$WORK/root" -c . | p import - test >/dev/null
}

runs() {
    expect hi "$(p "${run[@]}" test echo hi)"
    status 5 p "${run[@]}" test sh -c 'exit 5'
    status 137 p "${run[@]}" test sh -c 'kill -9 $$'
    status 127 p "${run[@]}" test no-such-program
    status 126 p "${run[@]}" test /etc/passwd
    expect input "$(echo input | p "${run[@]}" -i test cat)"
    expect "/tmp 27 b name" "$(p "${run[@]}" -w /tmp --umask 27 -e A=b -h name test sh -c 'echo $(pwd) $(umask | grep -o ..$) $A $(hostname)')"
}

identity() {
    expect "1000 1000" "$(p "${run[@]}" -u ann test sh -c 'echo $(id -u) $(id -g)')"
    expect "7 8 8 9" "$(p "${run[@]}" -u 7:8 --group-add 9 test sh -c 'echo $(id -u) $(id -g) $(id -G)')"
    [[ $(p "${run[@]}" --cap-drop all --security-opt no-new-privileges test cat /proc/self/status) == \
        *"CapBnd:"*0000000000000000*"NoNewPrivs:"*1* ]]
    expect 77 "$(p "${run[@]}" --ulimit nofile=77:99 test sh -c 'ulimit -n')"
}

further_programs() {
    p run -d --network none --name further test sh -c 'trap "echo told; exit 9" TERM; echo started; while :; do sleep 0.1; done' >/dev/null
    expect from-exec "$(p exec further echo from-exec)"
    status 5 p exec further sh -c 'exit 5'
    expect input "$(echo input | p exec -i further cat)"
    expect "1000 /tmp" "$(p exec -u ann -w /tmp further sh -c 'echo $(id -u) $(pwd)')"
    [[ $(p ps) == *further* ]]
    wait_for sh -c "${podman[*]} logs further | grep started"
    p stop -t 10 further >/dev/null
    expect "9 exited" "$(p inspect further --format '{{.State.ExitCode}} {{.State.Status}}')"
    expect "started told" "$(p logs further | tr '\n' ' ' | sed 's/ $//')"
    p start further >/dev/null
    p kill -s KILL further >/dev/null
    expect 137 "$(p wait further)"
    p rm further >/dev/null
}

writes_reach_the_image() {
    p run -d --network none --name writer test sh -c 'echo data > /home/new; rm /etc/group; chown 1000:1000 /home/new; touch /tmp/ready; sleep 1000' >/dev/null
    wait_for p exec writer cat /tmp/ready
    [[ $(p diff writer) == *"D /etc/group"* && $(p diff writer) == *"A /home/new"* ]]
    p cp writer:/home/new "$WORK/new"
    expect data "$(cat "$WORK/new")"
    echo back >"$WORK/back"
    p cp "$WORK/back" writer:/home/back
    expect back "$(p exec writer cat /home/back)"
    p commit writer changed >/dev/null 2>&1
    p rm -f -t 0 writer >/dev/null
    expect "data 1000" "$(p "${run[@]}" changed sh -c 'echo $(cat /home/new) $(stat -c %u /home/new)')"
}

volumes() {
    mkdir -p "$WORK/volume"
    echo here >"$WORK/volume/file"
    expect here "$(p "${run[@]}" -v "$WORK/volume:/data" test sh -c 'cat /data/file; mkdir /data/made')"
    [[ -d $WORK/volume/made ]]
    status 1 p "${run[@]}" -v "$WORK/volume:/data:ro" test touch /data/no
    expect here "$(p "${run[@]}" -v "$WORK/volume/file:/etc/single:ro" test cat /etc/single)"
    p "${run[@]}" -v named:/data test sh -c 'echo kept > /data/file'
    expect kept "$(p "${run[@]}" -v named:/data test cat /data/file)"
    status 1 p "${run[@]}" --read-only test touch /no
    p "${run[@]}" --read-only test touch /tmp/yes
    p "${run[@]}" --tmpfs /mnt test sh -c 'touch /mnt/x && grep " /mnt tmpfs" /proc/mounts' >/dev/null
}

size_of_the_machine() {
    expect 2 "$(p "${run[@]}" --cpus 2 test grep -c ^processor /proc/cpuinfo)"
    local kib
    kib=$(p "${run[@]}" -m 64m test cat /proc/meminfo | grep -o '^MemTotal: *[0-9]*' | grep -o '[0-9]*$')
    ((kib > 60000 && kib < 100000)) || { echo "MemTotal $kib"; return 1; }
}

a_terminal() {
    local output
    output=$(script -qec "timeout 120 ${podman[*]} run --rm -it --network none test sh -c 'tty; exit 4'" /dev/null </dev/null) || expect 4 $?
    [[ $output == *"/dev/console"* ]] || { echo "$output"; return 1; }
}

refusals() {
    status 126 p "${run[@]}" --device /dev/null:/dev/x test true
    status 126 p "${run[@]}" --sysctl net.ipv4.ip_forward=1 test true
}

a_bridge() {
    p run -d --name web -p 127.0.0.1:18080:80 test sh -c 'cat < /dev/tcp/10.88.0.1/1 2>/dev/null; cat /proc/net/dev; sleep 1000' >/dev/null 2>"$WORK/why" ||
        { echo "$(cat "$WORK/why")"; return 1; }
    wait_for sh -c "${podman[*]} logs web | grep eth0"
    local address
    address=$(p inspect web --format '{{.NetworkSettings.IPAddress}}')
    [[ -n $address && $(p exec web cat /proc/net/fib_trie /etc/hosts) == *"$address"* ]]
    p rm -f -t 0 web >/dev/null
}

restarts() {
    p run -d --network none --restart on-failure:2 --name again test sh -c 'echo once; exit 1' >/dev/null
    wait_for sh -c "[ \"\$(${podman[*]} logs again | wc -l)\" = 3 ]"
    p rm -f -t 0 again >/dev/null
}

health() {
    p run -d --network none --health-cmd 'cat /tmp/well' --health-interval disable --name well test sh -c 'touch /tmp/well; sleep 1000' >/dev/null
    wait_for p exec well cat /tmp/well
    p healthcheck run well
    p exec well rm /tmp/well
    status 1 p healthcheck run well
    p rm -f -t 0 well >/dev/null
}

if ! make_image >"$WORK/log" 2>&1; then echo "not ok an image: $(tail -c 300 "$WORK/log")"; exit; fi
check "runs, statuses, streams" runs
check "users, capabilities, limits" identity
check "exec, logs, stop, start, kill" further_programs
check "diff, cp, commit" writes_reach_the_image
check "volumes, read-only roots, tmpfs" volumes
check "limits make the machine's size" size_of_the_machine
check "a terminal" a_terminal
check "what cannot be had is refused" refusals
check "restart policy" restarts
check "health check" health
if [[ -e /dev/net/tun && -d /usr/lib/cni ]]; then check "the engine's bridge" a_bridge; else echo "skip the engine's bridge: no tun device or plugins"; fi
