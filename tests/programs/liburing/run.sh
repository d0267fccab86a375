#!/bin/bash
# Runs tests of liburing, and prints a line for each: `ok NAME`, `not ok NAME: REASON`, `skip NAME: REASON`, as the guest
# tests do. `module NAME` and `start NAME` say what runs, and `end` that all have run. Arguments: names, or `-x NAME` for
# one that is not to be run. The tests write into the folder that they run in and find each other there.

limit_s=120
declare -A excluded
names=()
while [ $# -gt 0 ]; do
    if [ "$1" = -x ]; then
        excluded[$2]=1
        shift
    else
        names+=("$1")
    fi
    shift
done
mkdir -p /tmp/liburing
cd /tmp/liburing || exit 1
ln -sf /built/*.t .
for name in "${names[@]}"; do
    echo "module $name"
    [ -n "${excluded[$name]}" ] && continue
    echo "start $name"
    timeout -k 10 "$limit_s" "./$name.t" > output 2>&1 < /dev/null
    status=$?
    last=$(grep -v '^$' output | tail -n 1 | tr -d '\r' | cut -c 1-200)
    case $status in
        0) echo "ok $name" ;;
        77) echo "skip $name: $last" ;;
        124 | 137) echo "not ok $name: no end within $limit_s s $last" ;;
        *) echo "not ok $name: status $status $last" ;;
    esac
done
echo end
