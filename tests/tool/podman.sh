#!/usr/bin/env bash
# Podman with heddle-oci as its runtime, on an image made of this host's programs.
source "$(dirname "$0")/lib.sh"
unset XDG_RUNTIME_DIR
if ! command -v podman >/dev/null; then echo "skip podman: not installed"; rm -rf "$WORK"; exit; fi
if ((EUID)); then echo "skip podman: rootless.sh has an ordinary user's form"; rm -rf "$WORK"; exit; fi

# Storage of its own: what the user has is not touched.
ln -s "$HEDDLE" "$WORK/heddle-oci"
podman=(podman --root "$WORK/storage" --runroot "$WORK/runroot" --runtime "$WORK/heddle-oci")
p() { timeout 120 "${podman[@]}" "$@"; }
trap 'p rm -af >/dev/null 2>&1; p rmi -af >/dev/null 2>&1; rm -rf "$WORK"' EXIT
run=(run --rm --network none)

make_image() {
    root_of_host "$WORK/root" echo cat ls id sleep mkdir rm touch stat wc tty stty grep busybox ln mv chmod chown hostname sync df
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

# The network name space of a container's process, which others join by its number.
network_of() {
    readlink "/proc/$(p inspect "$1" --format '{{.State.Pid}}')/ns/net"
}

host_links() {
    ip -json link show | grep -o '"ifname":"[^"]*"\|"master":"[^"]*"\|"address":"[^"]*"'
}

own_network() {
    local before
    before=$(host_links)
    p run -d --network none --name alone test sleep 1000 >/dev/null
    [[ $(network_of alone) != "$(readlink /proc/self/ns/net)" ]]
    # A second container in the first one's network sees what is there: nothing but the loopback.
    [[ $(p run --rm --network container:alone test cat /proc/net/dev) != *eth0* ]]
    p rm -f -t 0 alone >/dev/null
    expect "$before" "$(host_links)"
}

a_bridge() {
    p run -d --name web -p 127.0.0.1:18080:80 test sh -c 'cat /proc/net/dev; while :; do echo published | busybox nc -l -p 80; done' >/dev/null 2>"$WORK/why" ||
        { cat "$WORK/why"; return 1; }
    wait_for sh -c "${podman[*]} logs web | grep eth0"
    [[ $(network_of web) != "$(readlink /proc/self/ns/net)" ]]
    local address
    address=$(p inspect web --format '{{.NetworkSettings.IPAddress}}')
    [[ -n $address && $(p exec web busybox ip addr show eth0) == *"$address"* ]]
    # From this host, to the address and to the published port.
    [[ ! -e /usr/bin/busybox ]] || wait_for sh -c "busybox nc -w 2 $address 80 </dev/null | grep published"
    wait_for sh -c 'busybox nc -w 2 127.0.0.1 18080 </dev/null | grep published'
    # The engine makes a new interface for a container that starts again.
    p restart -t 0 web >/dev/null
    address=$(p inspect web --format '{{.NetworkSettings.IPAddress}}')
    wait_for sh -c "${podman[*]} exec web busybox ip addr show eth0 | grep '$address'"
    p rm -f -t 0 web >/dev/null
}


# Says what nc hears from a port of this host, until it hears something.
published() {
    wait_for sh -c "busybox nc -w 2 127.0.0.1 $1 </dev/null | grep $2"
}

a_pod() {
    local before serve='while :; do echo from-pod | busybox nc -l -p 80; done'
    before=$(host_links)
    p pod create --name group -p 127.0.0.1:18081:80 >/dev/null
    p run -d --pod group --name member test sh -c "$serve" >/dev/null
    published 18081 from-pod
    # Of a pod's containers one has the network, because each is a machine; the second is told so.
    status 126 p run --rm --pod group test true
    grep -q "another machine has the interface" "$WORK/status-output"
    # The interface stays when its container starts again, and is a new one when the pod does.
    p restart -t 0 member >/dev/null
    published 18081 from-pod
    p pod stop -t 0 group >/dev/null
    p pod start group >/dev/null
    published 18081 from-pod
    p pod rm -f -t 0 group >/dev/null
    expect "$before" "$(host_links | grep -v 'cni-podman0\|veth')"
}

a_deployment() {
    p tag test localhost/test
    cat >"$WORK/kube.yaml" <<END
apiVersion: apps/v1
kind: Deployment
metadata: {name: site}
spec:
  replicas: 1
  selector: {matchLabels: {app: site}}
  template:
    metadata: {labels: {app: site}}
    spec:
      containers:
      - name: web
        image: localhost/test
        command: [sh, -c, 'while :; do echo from-kube | busybox nc -l -p 80; done']
        ports: [{containerPort: 80, hostPort: 18082}]
END
    p play kube "$WORK/kube.yaml" >/dev/null
    published 18082 from-kube
    p play kube --down "$WORK/kube.yaml" >/dev/null
    expect "" "$(p ps -aq)"
}

# The other of podman's two network stacks, in a storage and with networks of its own.
netavark() {
    local podman=(env CONTAINERS_CONF="$WORK/netavark.conf" podman --root "$WORK/netavark/storage" --runroot "$WORK/netavark/runroot"
        --network-config-dir "$WORK/netavark/networks" --runtime "$WORK/heddle-oci")
    local before address
    before=$(host_links)
    printf '[network]\nnetwork_backend = "netavark"\n' >"$WORK/netavark.conf"
    tar -C "$WORK/root" -c . | p import - test >/dev/null
    expect netavark "$(p info --format '{{.Host.NetworkBackend}}')"
    p network create --subnet 10.77.0.0/24 joined >/dev/null
    p run -d --name web --network joined -p 127.0.0.1:18083:80 test \
        sh -c 'while :; do echo from-netavark | busybox nc -l -p 80; done' >/dev/null
    address=$(p inspect web --format '{{.NetworkSettings.Networks.joined.IPAddress}}')
    [[ $address == 10.77.0.* && $(p exec web busybox ip addr show eth0) == *"$address/24"* ]]
    published 18083 from-netavark
    # Another container finds it by its address, and by its name where the engine has its server of names.
    expect from-netavark "$(p run --rm --network joined test busybox nc -w 5 "$address" 80 </dev/null)"
    if [[ -x /usr/lib/podman/aardvark-dns ]]; then
        expect from-netavark "$(p run --rm --network joined test busybox nc -w 5 web 80 </dev/null)"
    fi
    p rm -f -t 0 web >/dev/null
    p network rm joined >/dev/null
    expect "$before" "$(host_links)"
}

by_configuration() {
    cat >"$WORK/containers.conf" <<END
[engine]
runtime = "heddle"
[engine.runtimes]
heddle = ["$WORK/heddle-oci"]
END
    expect Heddle "$(CONTAINERS_CONF=$WORK/containers.conf timeout 120 podman --root "$WORK/storage" --runroot "$WORK/runroot" \
        run --rm --network none test sh -c 'read name </proc/sys/kernel/ostype; read version </proc/version; case $version in *[Hh]eddle*) echo Heddle;; *) echo $version;; esac')"
}

# Fifty at once, and what each takes of this host's memory: pages that they share count in parts.
many() {
    local number pids=() pid total=0 kib
    for number in $(seq 50); do
        p run -d --network none --memory 32m --cpus 1 --name "many-$number" test sleep 1000 >/dev/null
    done
    expect 50 "$(p ps -q --filter name=many- | wc -l)"
    expect many "$(p exec many-50 echo many)"
    for number in $(seq 50); do
        pid=$(p inspect "many-$number" --format '{{.State.Pid}}')
        pids+=("$pid" $(ps -o pid= --ppid "$pid"))
    done
    for pid in "${pids[@]}"; do
        kib=$(grep -m1 '^Pss:' "/proc/$pid/smaps_rollup" | tr -dc 0-9)
        total=$((total + kib))
    done
    echo "# 50 containers at once take $((total / 50 / 1024)) MiB each" >&3
    p rm -af -t 0 >/dev/null
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

# A whole Debian: what its own tools say of its thousands of files.
a_debian_tree() {
    # Without a user name space, which a container that runs the tests may not make.
    mmdebstrap --quiet --mode=root --variant=essential bookworm "$WORK/debian.tar" >"$WORK/bootstrap" 2>&1 || {
        tail -n 3 "$WORK/bootstrap"
        return 1
    }
    p import "$WORK/debian.tar" debian >/dev/null
    rm "$WORK/debian.tar"
    p run -d --network none --name debian debian sleep 1000 >/dev/null
    expect "" "$(p exec debian dpkg --verify base-files bash coreutils dpkg libc6)"
    p exec debian sh -c 'echo ann:x:1000:1000::/home:/bin/sh >> /etc/passwd; echo "ann:*:20000::::::" >> /etc/shadow'
    expect "ok ann" "$(p exec debian su ann -c 'perl -e "print q(ok )"; id -un')"
    # What the guest writes and the host writes later, in the same folder.
    p exec debian sh -c 'mkdir /srv/made && seq 300 | while read -r n; do echo $n > /srv/made/$n; done'
    echo host >"$WORK/300"
    p cp "$WORK/300" debian:/srv/made/300
    p cp "$WORK/300" debian:/srv/made/301
    expect "301 host host" "$(p exec debian sh -c 'echo $(ls /srv/made | wc -l) $(cat /srv/made/300 /srv/made/301)')"
    p rm -f -t 0 debian >/dev/null
}

# Programs of musl, with its loader, as in Alpine.
a_musl_tree() {
    mkdir -p "$WORK/musl"/{bin,lib,etc,tmp,proc,sys,dev}
    cat >"$WORK/musl.c" <<'END'
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void *twice(void *number) { *(int *)number *= 2; return 0; }
int main(void) {
    int number = 21, status;
    pthread_t thread;
    pthread_create(&thread, 0, twice, &number);
    pthread_join(thread, 0);
    if (!fork()) _exit(number);
    wait(&status);
    printf("%d %s\n", WEXITSTATUS(status), getpwuid(1000)->pw_name);
}
END
    musl-gcc -O1 "$WORK/musl.c" -o "$WORK/musl/bin/program"
    cp /lib/x86_64-linux-musl/libc.so "$WORK/musl/lib/ld-musl-x86_64.so.1"
    cp -L "$(type -P busybox)" "$WORK/musl/bin/busybox"
    ldd "$WORK/musl/bin/busybox" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$WORK/musl$(dirname "$library")"
        cp -L "$library" "$WORK/musl$library"
    done
    for name in sh ls cat; do ln -s busybox "$WORK/musl/bin/$name"; done
    cp "$WORK/root/etc/passwd" "$WORK/musl/etc/passwd"
    tar -C "$WORK/musl" -c . | p import - musl >/dev/null
    expect "42 ann" "$(p "${run[@]}" musl program)"
    expect "42 ann" "$(p "${run[@]}" musl sh -c 'program | cat')"
}

# A database whose volume survives its container.
a_database() {
    root_of_host "$WORK/redis" redis-server redis-cli sleep mkdir
    tar -C "$WORK/redis" -c . | p import - redis >/dev/null
    local serve=(redis-server --port 0 --unixsocket /tmp/socket --dir /data --appendonly yes --save "" --daemonize no)
    local number
    for number in 1 2; do
        p run -d --network none -v database:/data --name "redis-$number" redis "${serve[@]}" >/dev/null
        wait_for p exec "redis-$number" redis-cli -s /tmp/socket ping
        [[ $number != 1 ]] || expect OK "$(p exec redis-1 redis-cli -s /tmp/socket set key value)"
        expect value "$(p exec "redis-$number" redis-cli -s /tmp/socket get key)"
        p stop -t 20 "redis-$number" >/dev/null
        expect 0 "$(p inspect "redis-$number" --format '{{.State.ExitCode}}')"
        p rm "redis-$number" >/dev/null
    done
    p volume rm database >/dev/null
}

# A build in a source tree of the host, with the host's compiler.
a_build() {
    local number
    mkdir -p "$WORK/toolchain"/{etc,tmp,proc,sys,dev,root,src,usr} "$WORK/src"
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$WORK/toolchain/$name"; done
    cp /etc/passwd /etc/group "$WORK/toolchain/etc"
    mkdir -p "$WORK/toolchain/etc/alternatives"
    cp -d /etc/alternatives/* "$WORK/toolchain/etc/alternatives"
    tar -C "$WORK/toolchain" -c . | p import - toolchain >/dev/null
    for number in $(seq 6); do
        printf '#include <stdio.h>\n#include "sum.h"\nint part_%s(void) { return %s; }\n' "$number" "$number" >"$WORK/src/part$number.c"
    done
    printf 'int part_%s(void);\n' $(seq 6) >"$WORK/src/sum.h"
    cat >"$WORK/src/main.c" <<'END'
#include <stdio.h>
#include "sum.h"
int main(void) { printf("%d\n", part_1() + part_2() + part_3() + part_4() + part_5() + part_6()); }
END
    printf 'objects := $(patsubst %%.c,%%.o,$(wildcard *.c))\nsum: $(objects)\n\t$(CC) -o $@ $^\n$(objects): sum.h\n' >"$WORK/src/Makefile"
    local compile=(run --rm --network none --cpus 2 -v /usr:/usr:ro -v "$WORK/src:/src" -w /src toolchain)
    p "${compile[@]}" make -s -j4
    expect 21 "$("$WORK/src/sum")"
    # A second one sees what the first has left, and the change that came from here.
    echo 'int part_6(void) { return 106; }' >"$WORK/src/part6.c"
    expect 1 "$(p "${compile[@]}" make -j4 | grep -c part..c)"
    expect 121 "$("$WORK/src/sum")"
}

if ! make_image >"$WORK/log" 2>&1; then echo "not ok an image: $(tail -c 300 "$WORK/log")"; exit; fi
check "runs, statuses, streams" runs
check "users, capabilities, limits" identity
check "exec, logs, stop, start, kill" further_programs
check "diff, cp, commit" writes_reach_the_image
check "volumes, read-only roots, tmpfs" volumes
# needs NAME PROGRAM FUNCTION: a check that a program of this host is needed for.
needs() {
    if command -v "$2" >/dev/null; then check "$1" "$3"; else echo "skip $1: no $2"; fi
}
needs "a Debian root" mmdebstrap a_debian_tree
needs "programs of musl" musl-gcc a_musl_tree
needs "a database and its volume" redis-server a_database
needs "a build in a source tree of the host" gcc a_build
check "limits make the machine's size" size_of_the_machine
check "a terminal" a_terminal
check "what cannot be had is refused" refusals
check "restart policy" restarts
check "a runtime by containers.conf" by_configuration
check "fifty at once" many 3>&1
check "a network of its own" own_network
check "health check" health
if [[ -e /dev/net/tun && -d /usr/lib/cni ]]; then
    check "the engine's bridge" a_bridge
    check "a pod" a_pod
    check "a Deployment" a_deployment
else
    echo "skip the engine's bridge, pods: no tun device or plugins"
fi
if [[ -e /dev/net/tun && -x /usr/lib/podman/netavark ]]; then
    check "netavark's bridge" netavark
else
    echo "skip netavark's bridge: no tun device or no netavark"
fi
