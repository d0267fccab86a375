/* Coroutines under Heddle's order of priorities, from the vDSO: see docs/SHARED-SCHEDULER.md.
 *
 * The functions are found in the object that the auxiliary vector names (AT_SYSINFO_EHDR), for example by
 * dlvsym(dlopen("linux-vdso.so.1", RTLD_NOW | RTLD_NOLOAD), NAME, "HEDDLE_1"). A kernel without them is not Heddle. */
#ifndef HEDDLE_H
#define HEDDLE_H

#include <stddef.h>
#include <stdint.h>

/* Entries of the auxiliary vector: the pages of the process, and the page of the system. */
#define AT_HEDDLE_PROCESS 0x48656401
#define AT_HEDDLE_SYSTEM 0x48656402

/* What a coroutine's function returns. */
#define HEDDLE_WAITS 0
#define HEDDLE_DONE 1

/* Levels: 0 is the most urgent, 63 the least. In the machine, 20 to 43 are ordinary: in exact order among all programs
 * of the user, which together get the time of one thread on each processor. 4 to 19 go before all ordinary threads, for
 * those who may use realtime priorities; 44 to 62 behind. */
#define HEDDLE_LEVEL_DEFAULT 32

#define HEDDLE_RELAXED 0
#define HEDDLE_STRICT 1

/* No executor: the calling thread runs no coroutines. */
#define HEDDLE_NO_EXECUTOR UINT32_MAX

struct heddle_info {
    uint64_t id;         /* 0: unused */
    uint32_t kind;       /* the program's own */
    uint8_t level;
    uint8_t state;       /* 0 ready, 1 running, 2 waits */
    uint16_t reserved;
    uint64_t polls;
    uint64_t since_ns;
    uint64_t delayed_ns;
};

struct heddle_coroutine {
    uint32_t (*poll)(struct heddle_coroutine *);
    void (*done)(struct heddle_coroutine *); /* called last, if not null; then the memory is the program's again */
    struct heddle_info info;                 /* `kind` may be set before the coroutine is spawned */
};

struct heddle_scheduler;

/* Bytes that a scheduler needs; 0 if there can be none for so many. At most 64 executors. */
size_t __heddle_scheduler_bytes(uint32_t executors, uint32_t coroutines);

/* Makes a scheduler in zeroed memory at a multiple of 128. `pages` is what AT_HEDDLE_PROCESS says; with NULL the kernel
 * knows nothing of it, and one thread may run it. Returns NULL if something does not fit. */
struct heddle_scheduler *__heddle_scheduler_init(
    void *memory, size_t bytes, uint32_t executors, uint32_t coroutines, void *pages);

/* The calling thread becomes executor `number`, from 0 on. Returns 0 or a negative errno. */
int __heddle_enter(struct heddle_scheduler *, uint32_t number);
void __heddle_leave(struct heddle_scheduler *, uint32_t number);

/* Makes a coroutine ready, on the thread of executor `number`; returns its id, 0 if there are too many. */
uint64_t __heddle_spawn(struct heddle_scheduler *, uint32_t number, struct heddle_coroutine *, uint32_t level);

/* The id of the coroutine that executor `number` runs, 0 for none. */
uint64_t __heddle_get_cid(struct heddle_scheduler *, uint32_t number);

/* Makes a coroutine ready; one that runs has another turn. `number` is the calling thread's, or HEDDLE_NO_EXECUTOR.
 * Returns 0 if it has ended. */
uint32_t __heddle_wake(struct heddle_scheduler *, uint32_t number, uint64_t id);

/* Changes the level of a coroutine. Otherwise as wake. */
uint32_t __heddle_reprio(struct heddle_scheduler *, uint32_t number, uint64_t id, uint32_t level);

/* Runs coroutines on the calling thread, executor `number`, the most urgent first, until all have ended, on whichever
 * executor. Sleeps when none is ready. Returns how many turns were run here. */
uint64_t __heddle_run(struct heddle_scheduler *, uint32_t number);

/* Asynchronous system calls: a coroutine hands one or several to the kernel, which carries them out by itself at the
 * coroutine's level, and goes on or waits. They are Heddle's own system calls, made with syscall(2); Linux answers
 * ENOSYS. What each guarantees is in docs/SHARED-SCHEDULER.md. */

/* (struct heddle_call *, size_t count): starts calls, at most HEDDLE_CALLS_MAX. Returns how many were started and writes
 * `state` and `outcome` of each; fails if the first could not be started: EAGAIN if the ring has no room for another
 * result, ENXIO if there is no ring, EFAULT, EINVAL. */
#define HEDDLE_SYS_SUBMIT 0x48440000
/* (uint64_t token, uint64_t flags): cancels a call that waits. Its result still comes, ECANCELED if nothing else came
 * first. Fails with ENOENT if the result is in the ring already. */
#define HEDDLE_SYS_CANCEL 0x48440001
/* (uint64_t token, uint32_t level): gives a call that waits another level, after __heddle_reprio of its coroutine say. Fails
 * with ENOENT if the result is in the ring already, and with EINVAL. */
#define HEDDLE_SYS_LEVEL 0x48440004

/* For HEDDLE_SYS_CANCEL: return when the call is over, so that the kernel does not touch its memory any more. */
#define HEDDLE_CANCEL_AND_WAIT 1

#define HEDDLE_CALLS_MAX 4096

/* What has become of a call. */
#define HEDDLE_CALL_NOT_STARTED 0 /* a call before it could not be started */
#define HEDDLE_CALL_DONE 1        /* finished: `outcome` is its result, a negative errno for an error */
#define HEDDLE_CALL_WAITS 2       /* under way: its result comes through the ring, `outcome` is its token */

struct heddle_call {
    uint32_t number;       /* a system call of Linux's (SYS_read) that may go on by itself; others have ENOSYS */
    uint32_t level;        /* of its coroutine in the kernel, see above */
    uint64_t cookie;       /* with __heddle_ring: 0, or the address of the 64-bit word that takes the result */
    uint64_t coroutine;    /* who is made ready when it has ended: what __heddle_get_cid returns */
    uint64_t arguments[6]; /* memory that they name stays in place until the result has come */
    uint64_t state;
    uint64_t outcome;
};

/* Bytes of a ring for 1 << order results, order 4 to 17. A call that waits is only taken while there is room for its
 * result, so results are never lost. */
#define HEDDLE_RING_BYTES(order) (128 + ((size_t)32 << (order)))

/* Makes `memory`, of HEDDLE_RING_BYTES(order) bytes at a multiple of 64, the ring of the process: each result is stored
 * where the call's cookie says, if that is not 0, and then the coroutine that the call names is made ready. A coroutine
 * may also be made ready by others, so set the word to something that is no result before the call, INT64_MIN say. A
 * second call replaces the ring, say by a larger one; calls under way then come back in the new one. The memory of a ring
 * is the program's again when the last executor has left. Returns 0 or a negative errno. */
int __heddle_ring(struct heddle_scheduler *, void *memory, uint32_t order);

/* How the process gives way to what is more urgent elsewhere; returns the policy before, or a negative errno. */
int __heddle_policy(struct heddle_scheduler *, uint32_t policy);

/* User interrupts for programs with a scheduler of their own, which register their executor threads themselves (REGISTER
 * in abi/src/user_sched/calls.rs) with `__heddle_interrupt_entry()` as handler. The argument is the address of a
 * structure whose first word is a function: it is called with that address and must use general registers only.
 * `__heddle_notice` is such a function: it sets `noticed`. The program takes the reasons from the record, which stays
 * masked until then, and unmasks it. */
struct heddle_notice {
    void (*function)(struct heddle_notice *);
    uint32_t noticed;
};
void __heddle_notice(struct heddle_notice *);
uintptr_t __heddle_interrupt_entry(void);

#endif
