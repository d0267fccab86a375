/* Three coroutines of different levels, one of which waits for another. Prints `urgent background-waits ordinary
 * background`. Build: cc -I guest/vdso/include guest/vdso/examples/order.c -o order -ldl; it runs in Heddle. */
#define _GNU_SOURCE
#include "heddle.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

static __typeof__(__heddle_scheduler_bytes) *scheduler_bytes;
static __typeof__(__heddle_scheduler_init) *scheduler_init;
static __typeof__(__heddle_enter) *enter;
static __typeof__(__heddle_leave) *leave;
static __typeof__(__heddle_spawn) *spawn;
static __typeof__(__heddle_get_cid) *get_cid;
static __typeof__(__heddle_wake) *wake;
static __typeof__(__heddle_reprio) *reprio;
static __typeof__(__heddle_run) *run;

static struct heddle_scheduler *scheduler;
static uint64_t background_id;
static char output[128];

static uint32_t urgent(struct heddle_coroutine *self) {
    (void)self;
    strcat(output, "urgent ");
    /* The one that was spawned first, and as the least urgent, goes before the ordinary one now. */
    reprio(scheduler, 0, background_id, 31);
    return HEDDLE_DONE;
}

static uint32_t ordinary(struct heddle_coroutine *self) {
    (void)self;
    strcat(output, "ordinary ");
    wake(scheduler, 0, background_id);
    return HEDDLE_DONE;
}

static uint32_t background(struct heddle_coroutine *self) {
    if (self->info.polls == 1) {
        strcat(output, get_cid(scheduler, 0) == background_id ? "background-waits " : "someone-else ");
        return HEDDLE_WAITS;
    }
    strcat(output, "background");
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
    wake = find(object, "__heddle_wake");
    reprio = find(object, "__heddle_reprio");
    run = find(object, "__heddle_run");

    size_t bytes = scheduler_bytes(1, 8);
    void *memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
    memset(memory, 0, bytes);
    scheduler = scheduler_init(memory, bytes, 1, 8, (void *)getauxval(AT_HEDDLE_PROCESS));
    if (!scheduler || enter(scheduler, 0) != 0) return 1;

    static struct heddle_coroutine coroutines[3];
    coroutines[0].poll = background;
    coroutines[1].poll = ordinary;
    coroutines[2].poll = urgent;
    background_id = spawn(scheduler, 0, &coroutines[0], 50);
    spawn(scheduler, 0, &coroutines[1], HEDDLE_LEVEL_DEFAULT);
    spawn(scheduler, 0, &coroutines[2], 10);
    uint64_t turns = run(scheduler, 0);
    leave(scheduler, 0);
    printf("%s\n", output);
    return turns == 4 && strcmp(output, "urgent background-waits ordinary background") == 0 ? 0 : 1;
}
