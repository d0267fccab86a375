// A host whose file system hangs, for QEMU: calls on files whose names begin with "hang-" do not return while there is
// a file "slow" in the folder and none of the name "answer". Each that begins to wait leaves a file "hung.NUMBER".
// What is written to files whose names begin with "fail-" is refused.
// With HUNG_DELAY_US every call takes up to so many microseconds.
//
// No buffer is on the stack. Where a call before has left a path there, QEMU 7.2 starts machines whose firmware finds no
// kernel, in half of all starts: it seems to read a variable of its own that nobody has written.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_there(const char *name)
{
    static __thread char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("HUNG_FOLDER"), name);
    return access(path, F_OK) == 0;
}

static void hang(const char *name)
{
    static atomic_int count;
    const char *delay = getenv("HUNG_DELAY_US");
    if (delay)
        usleep(rand() % (1 + atoi(delay)));
    if (!name || strncmp(name, "hang-", 5) || !is_there("slow") || is_there("answer"))
        return;
    static __thread char path[4096];
    snprintf(path, sizeof path, "%s/hung.%d", getenv("HUNG_FOLDER"), atomic_fetch_add(&count, 1));
    int mark = open(path, O_WRONLY | O_CREAT, 0644);
    if (mark >= 0)
        close(mark);
    while (!is_there("answer"))
        usleep(2000);
}

static const char *name_of(int file)
{
    static __thread char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t preadv64(int file, const struct iovec *parts, int count, off64_t offset)
{
    hang(name_of(file));
    return NEXT(preadv64)(file, parts, count, offset);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset)
{
    const char *name = name_of(file);
    hang(name);
    if (!strncmp(name, "fail-", 5)) {
        errno = ENOSPC;
        return -1;
    }
    return NEXT(pwritev64)(file, parts, count, offset);
}

int fstatat64(int folder, const char *restrict name, struct stat64 *restrict status, int flags)
{
    hang(name);
    return NEXT(fstatat64)(folder, name, status, flags);
}
