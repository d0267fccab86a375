# The workloads of `spaces`: a function that prepares, if there is something to prepare, and one that does the work, in the
# size that is its argument. Run as `bash -c THIS bash NAME SIZE`: prepares, prints `ready`, waits for a line, works,
# prints `done`, waits for a line, and cleans up.
set -e
cd "$(mktemp -d)"

run_pipeline() { dd if=/dev/zero bs=4k count="$1" 2>/dev/null | dd bs=4k 2>/dev/null | wc -c >/dev/null; }

run_commands() { for ((n = 0; n < $1; n++)); do /bin/true; done; }

run_subshells() { for ((n = 0; n < $1; n++)); do (echo "$n" | cat >/dev/null); done; }

prepare_gcc() {
    for n in 1 2 3 4 5 6 7 8; do
        printf '#include <stdio.h>\nint f%s(int a) { printf("%%d\\n", a); return a * %s; }\n' "$n" "$n" >"f$n.c"
    done
    printf 'int main(void) { return 0; }\n' >main.c
    printf 'OBJECTS = main.o f1.o f2.o f3.o f4.o f5.o f6.o f7.o f8.o\nprogram: $(OBJECTS)\n\tgcc -o $@ $^\n' >Makefile
    printf '%%.o: %%.c\n\tgcc -O1 -c -o $@ $<\nclean:\n\trm -f program *.o\n' >>Makefile
}
run_gcc() { for ((n = 0; n < $1; n++)); do gcc -O1 f1.c main.c -o one; done; }
prepare_make() { prepare_gcc; }
run_make() { for ((n = 0; n < $1; n++)); do make -s clean; make -s -j4; done; }

run_python() { python3 -c 'import sys
for n in range(int(sys.argv[1])): print("x" * 4000, flush=True)' "$1" | cat >/dev/null; }

prepare_pool() {
    cat >pool.py <<'END'
import multiprocessing, sys
def square(number):
    return number * number
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.imap_unordered(square, range(int(sys.argv[1])))))
END
}
run_pool() { python3 pool.py "$1" >/dev/null; }

prepare_redis() {
    redis-server --port 0 --unixsocket "$PWD/socket" --save '' --daemonize no >log 2>&1 &
    until redis-cli -s "$PWD/socket" ping 2>/dev/null | grep -q PONG; do sleep 0.05; done
    redis-cli -s "$PWD/socket" eval 'for n = 1, 20000 do redis.call("set", "key" .. n, n) end' 0 >/dev/null
}
run_redis() {
    redis-cli -s "$PWD/socket" bgsave >/dev/null
    for ((n = 0; n < $1; n++)); do echo "incr counter"; done | redis-cli -s "$PWD/socket" >/dev/null
}
clean_redis() { redis-cli -s "$PWD/socket" shutdown nosave; }

# The server under its own user, as Debian runs it; the clients over its unix socket.
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
prepare_postgres() {
    chmod 755 .
    id postgres >/dev/null 2>&1 || {
        echo 'postgres:x:105:110::/var/lib/postgresql:/bin/bash' >>/etc/passwd
        echo 'postgres:x:110:' >>/etc/group
    }
    mkdir data && chown postgres:postgres data && chmod 700 data
    bin=$(echo /usr/lib/postgresql/*/bin)
    as_postgres "$bin/initdb" -D data -A trust --no-sync --no-instructions >log 2>&1
    as_postgres "$bin/postgres" -D data -k "$PWD/data" -h '' -F >log 2>&1 &
    until as_postgres "$bin/pg_isready" -q -h "$PWD/data"; do sleep 0.1; done
    as_postgres "$bin/pgbench" -i -s 1 -q -h "$PWD/data" postgres >log 2>&1
}
run_postgres() { as_postgres "$bin/pgbench" -n -h "$PWD/data" -c 1 -t "$1" postgres >log 2>&1; }
run_postgres4() { as_postgres "$bin/pgbench" -n -h "$PWD/data" -c 4 -t "$1" postgres >log 2>&1; }
prepare_postgres4() { prepare_postgres; }
clean_postgres() { as_postgres "$bin/pg_ctl" -D data -m immediate stop >log 2>&1; }
clean_postgres4() { clean_postgres; }

prepare_node() {
    cat >parent.js <<'END'
const { fork } = require("child_process");
if (process.argv[3]) { process.on("message", (n) => process.send(n + 1)); return; }
const count = Number(process.argv[2]), child = fork(__filename, ["0", "child"]);
child.on("message", (n) => n < count ? child.send(n) : child.disconnect());
child.send(0);
END
}
run_node() { node parent.js "$1"; }

# A program of Go's, between two that are not.
run_go() { for ((n = 0; n < $1; n++)); do echo "line $n"; done | fzf -f 9 | wc -l >/dev/null; }

# The kind of shell script that configure is: many small commands, substitutions and pipes.
run_script() {
    for ((n = 0; n < $1; n++)); do
        a=$(echo "value $n" | sed 's/value/number/')
        case $(expr "$n" : '.*') in [0-9]*) : ;; *) return 1 ;; esac
        if test -n "$a" && grep -q root /etc/passwd; then b=$(basename "/usr/lib/$n"); fi
        echo "$a $b" >>output
    done
    sort output | uniq -c | tail -1 >/dev/null
}

if declare -F "prepare_$1" >/dev/null; then "prepare_$1" "$2"; fi
echo ready
read -r _
"run_$1" "$2"
echo done
read -r _
if declare -F "clean_$1" >/dev/null; then "clean_$1"; fi
exit 0
