/* Asynchronous system calls. Three coroutines of different levels read from pipes, each by a call that goes on by itself;
 * a fourth sleeps, writes to all three by one entry into the kernel, and cancels a call that nobody answers. Prints
 * `written 3` and then `urgent ordinary background canceled`: the readers run in the order of their levels.
 *
 * Build: cc -I guest/vdso/include guest/vdso/examples/calls.c -o calls -ldl; it runs in Heddle. */
#define _GNU_SOURCE
#include "heddle.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NO_RESULT INT64_MIN
#define RING_ORDER 4

static __typeof__(__heddle_scheduler_bytes) *scheduler_bytes;
static __typeof__(__heddle_scheduler_init) *scheduler_init;
static __typeof__(__heddle_enter) *enter;
static __typeof__(__heddle_leave) *leave;
static __typeof__(__heddle_spawn) *spawn;
static __typeof__(__heddle_get_cid) *get_cid;
static __typeof__(__heddle_run) *run;
static __typeof__(__heddle_ring) *ring;

static struct heddle_scheduler *scheduler;

struct reader {
    struct heddle_coroutine coroutine; /* first: `poll` is passed its address */
    const char *name;
    int pipe[2];
    int64_t result;
    uint64_t token;
    char text[32];
};

static struct reader readers[4] = {{.name = "background"}, {.name = "ordinary"}, {.name = "urgent"}, {.name = "no answer"}};
static const uint32_t levels[4] = {50, HEDDLE_LEVEL_DEFAULT, 10, 62};

static uint64_t word(const volatile void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* Starts a call for the coroutine that runs. Its result comes into `*result`, which is NO_RESULT until then. Returns the
 * token by which it can be cancelled, or 0 if it is over. */
static uint64_t start(struct heddle_call call, const struct heddle_coroutine *self, int64_t *result) {
    *result = NO_RESULT;
    call.level = self->info.level;
    call.cookie = word(result);
    call.coroutine = get_cid(scheduler, 0);
    if (syscall(HEDDLE_SYS_SUBMIT, &call, 1) != 1) {
        *result = -errno;
        return 0;
    }
    if (call.state == HEDDLE_CALL_WAITS) return call.outcome;
    *result = (int64_t)call.outcome;
    return 0;
}

static uint32_t read_once(struct heddle_coroutine *coroutine) {
    struct reader *self = (struct reader *)coroutine;
    if (coroutine->info.polls == 1) {
        struct heddle_call call = {.number = SYS_read, .arguments = {self->pipe[0], word(self->text), sizeof self->text}};
        self->token = start(call, coroutine, &self->result);
    }
    if (self->result == NO_RESULT) return HEDDLE_WAITS;
    if (self->result == -ECANCELED)
        printf("canceled\n");
    else
        printf("%.*s ", (int)self->result, self->text);
    return HEDDLE_DONE;
}

/* Sleeps, so that the thread does while all wait; then writes. */
static uint32_t write_all(struct heddle_coroutine *self) {
    static const struct timespec delay = {.tv_nsec = 1000000};
    static int64_t slept;
    if (self->info.polls == 1) {
        struct heddle_call call = {.number = SYS_nanosleep, .arguments = {word(&delay), 0}};
        start(call, self, &slept);
    }
    if (slept == NO_RESULT) return HEDDLE_WAITS;
    struct heddle_call calls[3];
    for (int i = 0; i < 3; i++)
        calls[i] = (struct heddle_call){
            .number = SYS_write,
            .level = self->info.level,
            .arguments = {readers[i].pipe[1], word(readers[i].name), strlen(readers[i].name)},
        };
    long started = syscall(HEDDLE_SYS_SUBMIT, calls, 3);
    for (int i = 0; i < started; i++)
        if (calls[i].state != HEDDLE_CALL_DONE || calls[i].outcome != strlen(readers[i].name)) started = -1;
    printf("written %ld\n", started);
    syscall(HEDDLE_SYS_CANCEL, readers[3].token, HEDDLE_CANCEL_AND_WAIT);
    return HEDDLE_DONE;
}

static void *find(void *object, const char *name) {
    void *function = dlvsym(object, name, "HEDDLE_1");
    if (!function) {
        fprintf(stderr, "the vDSO has no %s\n", name);
        exit(2);
    }
    return function;
}

int main(void) {
    void *object = dlopen("linux-vdso.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!object || !dlvsym(object, "__heddle_run", "HEDDLE_1")) {
        puts("this is not Heddle");
        return 3;
    }
    scheduler_bytes = find(object, "__heddle_scheduler_bytes");
    scheduler_init = find(object, "__heddle_scheduler_init");
    enter = find(object, "__heddle_enter");
    leave = find(object, "__heddle_leave");
    spawn = find(object, "__heddle_spawn");
    get_cid = find(object, "__heddle_get_cid");
    run = find(object, "__heddle_run");
    ring = find(object, "__heddle_ring");

    static _Alignas(64) char results[HEDDLE_RING_BYTES(RING_ORDER)];
    size_t bytes = scheduler_bytes(1, 8);
    void *memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
    if (!memory) return 1;
    memset(memory, 0, bytes);
    scheduler = scheduler_init(memory, bytes, 1, 8, (void *)getauxval(AT_HEDDLE_PROCESS));
    if (!scheduler || enter(scheduler, 0) != 0 || ring(scheduler, results, RING_ORDER) != 0) return 1;

    for (int i = 0; i < 4; i++) {
        if (pipe(readers[i].pipe) != 0) return 1;
        readers[i].coroutine.poll = read_once;
        if (!spawn(scheduler, 0, &readers[i].coroutine, levels[i])) return 1;
    }
    static struct heddle_coroutine writer = {.poll = write_all};
    spawn(scheduler, 0, &writer, 62);
    run(scheduler, 0);
    leave(scheduler, 0);
    return 0;
}
