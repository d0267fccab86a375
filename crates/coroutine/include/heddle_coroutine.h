/* The scheduler's core for C: see src/capi.rs, which is the reference. Build with the feature `vdso`. */
#ifndef HEDDLE_COROUTINE_H
#define HEDDLE_COROUTINE_H

#include <stddef.h>
#include <stdint.h>

#define HEDDLE_NO_CORE UINT32_MAX
#define HEDDLE_WATCH_PARKED 64
#define HEDDLE_WATCH_NONE 255

struct heddle_memory {
    void *slots;         /* slot_count times heddle_slot_bytes(), aligned to 128, zeroed; the first is unused */
    void *cores;         /* core_count times heddle_core_bytes(), aligned to 128, zeroed */
    uint32_t slot_count;
    uint32_t core_count;
    uint64_t kicks;      /* atomic: cores that the caller must disturb, by bit; the caller clears it */
};

struct heddle_pick {
    uint64_t id;
    void *task;
    uint32_t level;
    uint32_t cancelled;
};

size_t heddle_slot_bytes(void);
size_t heddle_core_bytes(void);
void heddle_core_init(const struct heddle_memory *, uint32_t core, uint32_t stealing);
void heddle_slot_give(const struct heddle_memory *, uint32_t core, uint32_t index);
uint64_t heddle_spawn(const struct heddle_memory *, uint32_t core, void *task, uint32_t level);
uint32_t heddle_pick(const struct heddle_memory *, uint32_t core, struct heddle_pick *);
void heddle_finish(const struct heddle_memory *, uint32_t core, uint64_t id, uint32_t complete);
uint32_t heddle_wake(const struct heddle_memory *, uint32_t here, uint64_t id);
uint32_t heddle_reprio(const struct heddle_memory *, uint32_t here, uint64_t id, uint32_t level);
uint32_t heddle_cancel(const struct heddle_memory *, uint32_t here, uint64_t id);
uint64_t heddle_bitmap(const struct heddle_memory *, uint32_t core);
uint32_t heddle_expose(const struct heddle_memory *, uint32_t core, uint32_t watch);
uint32_t heddle_steal(const struct heddle_memory *, uint32_t thief, uint32_t victim, uint32_t want);

#endif
