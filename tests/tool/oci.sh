#!/usr/bin/env bash
# The runtime's commands by themselves, as the OCI runtime specification has them, without an engine.
source "$(dirname "$0")/lib.sh"
o() { timeout 120 "$HEDDLE" oci --root "$WORK/state" --log "$WORK/log" "$@"; }
trap 'for id in one two three four; do o delete --force $id; done >/dev/null 2>&1; rm -rf "$WORK"' EXIT

# bundle NAME SCRIPT [MORE]: a bundle whose program is a shell's script; MORE goes into config.json as it is.
bundle() {
    local folder=$WORK/$1
    mkdir -p "$folder"
    cp -r "$WORK/root" "$folder/rootfs"
    cat >"$folder/config.json" <<END
{"ociVersion": "1.1.0", "hostname": "inner", "root": {"path": "rootfs"},
 "process": {"args": ["sh", "-c", "$2"], "env": ["PATH=/bin", "A=b"], "cwd": "/tmp", "noNewPrivileges": true,
  "user": {"uid": 0, "gid": 0, "umask": 23, "additionalGids": [27]},
  "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 64, "hard": 64}]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"}],
 "linux": {"namespaces": [{"type": "mount"}, {"type": "network"}]}${3:-}}
END
}

is() { o state "$1" | grep -q "\"status\": \"$2\""; }

a_life() {
    # shellcheck disable=SC2016 # The container's shell expands it.
    bundle one 'echo $(id -G) $(umask) $(hostname) $(ulimit -n) $A $(pwd); echo err >&2; exec sleep 1000'
    o create --bundle "$WORK/one" --pid-file "$WORK/pid" one >"$WORK/out" 2>"$WORK/err" </dev/null
    is one created
    kill -0 "$(cat "$WORK/pid")"
    # Nothing runs before it is told to, and a name is given once.
    expect "" "$(cat "$WORK/out")"
    status 125 o create --bundle "$WORK/one" one
    o start one
    is one running
    wait_for grep -q inner "$WORK/out"
    expect "0 27 0027 inner 64 b /tmp" "$(cat "$WORK/out")"
    expect err "$(cat "$WORK/err")"
    status 125 o start one
    status 125 o delete one
    o kill one KILL
    wait_for is one stopped
    status 125 o kill one KILL
    o delete one
    status 125 o state one
    status 125 o delete one
    o delete --force one
}

# Lists and further programs, of one that runs and one that waits.
lists() {
    bundle two 'exec sleep 1000'
    for id in two three; do
        o create --bundle "$WORK/two" --pid-file "$WORK/pid-$id" $id >"$WORK/out" 2>&1 </dev/null
    done
    o start two
    expect "three two" "$(o list --quiet | sort | tr '\n' ' ' | sed 's/ $//')"
    o list | grep -q "^two .*running"
    o list --format json | grep -q '"status": "created"'
    expect "PID $(cat "$WORK/pid-two")" "$(o ps two | tr '\n' ' ' | sed 's/ $//')"
    expect "[$(cat "$WORK/pid-two")]" "$(o ps --format json two | tr -d ' \n')"
    expect "1000 /home c" "$(o exec --user 1000:1000 --cwd /home --env B=c two sh -c 'echo $(id -u) $(pwd) $B')"
    status 3 o exec two sh -c 'exit 3'
    echo '{"args": ["sh", "-c", "echo $C; id -u"], "cwd": "/", "env": ["PATH=/bin", "C=d"], "user": {"uid": 1000, "gid": 1000}}' \
        >"$WORK/process.json"
    expect "d 1000" "$(o exec --process "$WORK/process.json" two | tr '\n' ' ' | sed 's/ $//')"
    # A container that never started is removed as it is.
    o delete three
    o delete --force two
    expect "" "$(o list --quiet)"
}

told_features() {
    local told
    told=$(o features)
    for word in ociVersionMin ociVersionMax hooks createRuntime poststop mountOptions; do
        [[ $told == *"\"$word\""* ]] || { echo "no $word: $told"; return 1; }
    done
}

# Each point of a container's life, with its state; one that fails is the end.
hooks_run() {
    local hooks='' point
    for point in prestart createRuntime createContainer startContainer poststart poststop; do
        hooks+="${hooks:+, }\"$point\": [{\"path\": \"/bin/sh\", \"args\": [\"sh\", \"-c\", \"echo $point \$FROM \$(grep -o four) >>$WORK/hooks\"],
            \"env\": [\"PATH=/usr/bin:/bin\", \"FROM=env\"]}]"
    done
    bundle four 'exit 0' ", \"hooks\": {$hooks}"
    o create --bundle "$WORK/four" four >"$WORK/out" 2>&1 </dev/null
    expect "prestart createRuntime createContainer" "$(cut -d' ' -f1 "$WORK/hooks" | tr '\n' ' ' | sed 's/ $//')"
    o start four
    wait_for is four stopped
    o delete four
    expect "prestart createRuntime createContainer startContainer poststart poststop" \
        "$(cut -d' ' -f1 "$WORK/hooks" | tr '\n' ' ' | sed 's/ $//')"
    [[ $(sort -u -k2 "$WORK/hooks" | cut -d' ' -f2-) == "env four"* ]]
    sed -i 's/echo createRuntime/exit 7; echo/' "$WORK/four/config.json"
    status 125 o create --bundle "$WORK/four" four
    status 125 o state four
    grep -q "hook /bin/sh" "$WORK/log"
}

# What would weaken a promise is an error, and what the machine stands for is a line in the log.
told_apart() {
    local asked
    for asked in '"sysctl": {"kernel.msgmax": "1"}' '"devices": [{"path": "/dev/sda", "type": "b", "major": 8, "minor": 0}]' \
        '"uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}]'; do
        bundle five 'true'
        sed -i "s|\"linux\": {|\"linux\": {$asked, |" "$WORK/five/config.json"
        status 125 o create --bundle "$WORK/five" five
        rm -r "$WORK/five"
    done
    bundle five 'true'
    sed -i 's|"linux": {|"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW"}, |' "$WORK/five/config.json"
    o create --bundle "$WORK/five" five >"$WORK/out" 2>&1 </dev/null
    o delete --force five
    grep -q seccomp "$WORK/log"
}

root_of_host "$WORK/root" id hostname sleep
check "a container's life" a_life
check "containers are listed, and run further programs" lists
check "what the runtime can do" told_features
check "hooks" hooks_run
check "what cannot be had is refused, and what is not needed told" told_apart
