#!/usr/bin/env bash
# Podman with heddle-oci as its runtime, started by an ordinary user. Root starts this script, and makes the user and a
# tun device that is open to users, as it is on most hosts, in a mount name space of its own: the host stays as it is.
if [[ -z ${ROOTLESS_PRIVATE:-} ]] && ((EUID == 0)) && unshare -m true 2>/dev/null; then
    ROOTLESS_PRIVATE=1 exec unshare -m --propagation private bash "$0" "$@"
fi
source "$(dirname "$0")/lib.sh"
skip() { echo "skip rootless podman: $1"; rm -rf "$WORK"; exit; }
command -v podman >/dev/null || skip "not installed"
command -v newuidmap >/dev/null || skip "no newuidmap"
((EUID == 0)) || skip "only root makes users"
[[ -n ${ROOTLESS_PRIVATE:-} ]] || skip "no mount name spaces"

user=heddle-test
id=4242
for name in passwd group subuid subgid; do
    touch -a "/etc/$name"
    cp "/etc/$name" "$WORK/$name"
    chmod 644 "$WORK/$name"
done
echo "$user:x:$id:$id::$WORK/home:/bin/sh" >>"$WORK/passwd"
echo "$user:x:$id:" >>"$WORK/group"
echo "$user:500000:65536" | tee -a "$WORK/subuid" >>"$WORK/subgid"
for name in passwd group subuid subgid; do mount --bind "$WORK/$name" "/etc/$name" || skip "no bind mounts"; done
mknod -m 666 "$WORK/tun" c 10 200 && [[ -e /dev/net/tun ]] && mount --bind "$WORK/tun" /dev/net/tun
chmod 711 "$WORK"
# Sockets have short paths.
mkdir -p "$WORK/home" "$WORK/r"
chown "$id:$id" "$WORK/home" "$WORK/r"
chmod 700 "$WORK/r"

# The tool as it is installed: a user need not see the clone.
"$HEDDLE" install --prefix "$WORK/installed" >/dev/null
chmod -R go+rX "$WORK/installed"

as_user() {
    setpriv --reuid "$id" --regid "$id" --init-groups env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$WORK/home" USER="$user" \
        XDG_RUNTIME_DIR="$WORK/r" "$@"
}
as_user unshare -Ur true 2>/dev/null || skip "no user name spaces for users"
cd "$WORK/home" || exit
podman=(podman --log-level error --cgroup-manager cgroupfs --runtime "$WORK/installed/bin/heddle-oci")
p() { as_user timeout 120 "${podman[@]}" "$@"; }
finish() {
    p rm -af
    p rmi -af
    # Files of the user's other numbers are the user's to remove; so is the process that keeps the name space.
    p unshare rm -rf "$WORK/home/.local"
    kill "$(cat "$WORK"/r/libpod/tmp/pause.pid)"
    rm -rf "$WORK"
} >/dev/null 2>&1
trap finish EXIT
run=(run --rm --network none)

make_image() {
    root_of_host "$WORK/root" echo cat ls id sleep mkdir rm touch stat chown busybox
    tar -C "$WORK/root" -c . | p import - test
}

runs() {
    expect hi "$(p "${run[@]}" test echo hi)"
    status 5 p "${run[@]}" test sh -c 'exit 5'
    expect input "$(echo input | p "${run[@]}" -i test cat)"
    expect "1000 1000" "$(p "${run[@]}" -u ann test sh -c 'echo $(id -u) $(id -g)')"
}

# said NAME TEXT: a container has written it.
said() { [[ $(p logs "$1") == *"$2"* ]]; }

further_programs() {
    p run -d --network none --name further test sh -c 'trap "echo told; exit 9" TERM; echo started; while :; do sleep 0.1; done' >/dev/null
    expect from-exec "$(p exec further echo from-exec)"
    wait_for said further started
    p stop -t 20 further >/dev/null
    expect "9 exited" "$(p inspect further --format '{{.State.ExitCode}} {{.State.Status}}')"
    p rm further >/dev/null
}

writes_reach_the_image() {
    p run --network none --name writer test sh -c 'echo data > /home/new; chown 1000:1000 /home/new; rm /etc/group'
    [[ $(p diff writer) == *"D /etc/group"* && $(p diff writer) == *"A /home/new"* ]]
    p commit writer changed >/dev/null 2>&1
    expect "data 1000" "$(p "${run[@]}" changed sh -c 'echo $(cat /home/new) $(stat -c %u /home/new)')"
    p rm writer >/dev/null
}

volumes() {
    as_user mkdir -p "$WORK/home/volume"
    echo here | as_user tee "$WORK/home/volume/file" >/dev/null
    expect here "$(p "${run[@]}" -v "$WORK/home/volume:/data" test sh -c 'cat /data/file; mkdir /data/made')"
    # Root of the container is the user here.
    expect "$id" "$(stat -c %u "$WORK/home/volume/made")"
    p "${run[@]}" -v named:/data test sh -c 'echo kept > /data/file'
    expect kept "$(p "${run[@]}" -v named:/data test cat /data/file)"
    p volume rm named >/dev/null
}

# slirp4netns is the network of an ordinary user in podman 4.3. It must forward the published ports too: podman's own
# process for that connects from inside the name space, whose address the machine has.
slirp() {
    local serve='while :; do echo from-rootless | busybox nc -l -p 80; done'
    p run -d --name web --network slirp4netns:port_handler=slirp4netns -p 127.0.0.1:18084:80 test sh -c "$serve" >/dev/null
    [[ $(p exec web busybox ip addr) == *"10.0.2.100/24"* ]]
    [[ $(p exec web cat /etc/resolv.conf) == *nameserver* ]]
    wait_for sh -c 'busybox nc -w 2 127.0.0.1 18084 </dev/null | grep from-rootless'
    p rm -f -t 0 web >/dev/null
}

if ! make_image >"$WORK/log" 2>&1; then echo "not ok an image: $(tail -c 300 "$WORK/log")"; exit; fi
check "an ordinary user: runs, statuses, streams" runs
check "an ordinary user: exec, logs, stop" further_programs
check "an ordinary user: diff, commit" writes_reach_the_image
check "an ordinary user: volumes" volumes
if command -v slirp4netns >/dev/null && as_user sh -c ': <>/dev/net/tun' 2>/dev/null; then
    check "an ordinary user: slirp4netns, a published port" slirp
else
    echo "skip an ordinary user: slirp4netns: not installed, or no tun device for users"
fi
