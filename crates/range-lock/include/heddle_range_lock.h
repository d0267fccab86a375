/* heddle-range-lock: a lock-free range lock over 64-bit keys. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Ranges are half-open, [start, end); an end of HEDDLE_RANGE_END has no upper bound, so the largest key can be
 * locked too. Every function may be called from any thread, and none throws. Overlapping, conflicting requests that
 * wait are served in the order of their arrival. A thread that waits for a range overlapping one that it holds waits
 * for itself.
 */
#ifndef HEDDLE_RANGE_LOCK_H
#define HEDDLE_RANGE_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As `end`: no upper bound. */
#define HEDDLE_RANGE_END UINT64_MAX

/* A lock, and a range held in it. */
typedef struct heddle_range_lock heddle_range_lock;
typedef struct heddle_range heddle_range;

typedef enum heddle_range_status {
    HEDDLE_RANGE_OK = 0,
    HEDDLE_RANGE_EMPTY = 1,     /* start is not below end */
    HEDDLE_RANGE_CONFLICT = 2,  /* someone holds, or waits for, an overlapping range */
    HEDDLE_RANGE_TIMED_OUT = 3, /* the time was up before the range was free */
    HEDDLE_RANGE_NO_MEMORY = 4
} heddle_range_status;

/* Someone who holds a range or waits for it. */
typedef struct heddle_range_holder {
    uint64_t start;
    uint64_t end;
    uint64_t payload;
    bool shared;
    bool waiting;
} heddle_range_holder;

/* A lock with nothing locked; NULL if there is no memory. */
heddle_range_lock *heddle_range_lock_new(void);

/* Frees the lock. Ranges that are still held end with it and must not be used any more. NULL is ignored. */
void heddle_range_lock_free(heddle_range_lock *lock);

/* Locks [start, end) if that is possible at once. Others see `payload` (heddle_range_first_conflict). On
 * HEDDLE_RANGE_OK *held is the range, to be released once; otherwise *held is NULL. */
heddle_range_status heddle_range_try_lock(heddle_range_lock *lock, uint64_t start, uint64_t end, bool shared,
                                          uint64_t payload, heddle_range **held);

/* The same, waiting as long as it takes. */
heddle_range_status heddle_range_acquire(heddle_range_lock *lock, uint64_t start, uint64_t end, bool shared,
                                         uint64_t payload, heddle_range **held);

/* The same, waiting for `timeout_ns` nanoseconds at most. */
heddle_range_status heddle_range_acquire_timeout(heddle_range_lock *lock, uint64_t start, uint64_t end, bool shared,
                                                 uint64_t payload, uint64_t timeout_ns, heddle_range **held);

/* Releases a range; by any thread. Never allocates and never fails. */
void heddle_range_release(heddle_range_lock *lock, heddle_range *held);

/* Makes an exclusive range shared. */
void heddle_range_downgrade(heddle_range_lock *lock, heddle_range *held);

/* Whether someone is in the way of an exclusive [start, end); if so *holder tells who, lowest start first. */
heddle_range_status heddle_range_first_conflict(heddle_range_lock *lock, uint64_t start, uint64_t end, bool *found,
                                                heddle_range_holder *holder);

#ifdef __cplusplus
}
#endif

#endif
