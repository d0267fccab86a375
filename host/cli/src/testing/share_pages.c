// Mapped pages of shared files, at the edges: share_pages lose|orphan|hold|cut FILE.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 64 * 4096, ROUNDS = 300 };

static volatile char *mapped;
static volatile int is_over, wrong;
static sigjmp_buf again;

static int stored(int file)
{
    return fsync(file) ? errno : 0;
}

// What could not be stored when it was unmapped is told of once by each file that was open.
static void lose(const char *name)
{
    int first = open(name, O_RDWR), second = open(name, O_RDONLY), error = 0;
    char *bytes = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, first, 0);
    bytes[0] = 'n';
    munmap(bytes, 4096);
    // It may be stored a little later.
    for (int tries = 0; tries < 1000 && !error; tries++) {
        usleep(2000);
        error = stored(first);
    }
    printf("%d ", error);
    printf("%d ", stored(first));
    printf("%d ", stored(second));
    printf("%d ", stored(second));
    printf("%d\n", stored(open(name, O_RDONLY)));
}

// What could not be stored when nobody had the file open is told of to who opens it next, once.
static void orphan(const char *name)
{
    int file = open(name, O_RDWR), error = 0;
    char *bytes = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    bytes[0] = 'n';
    munmap(bytes, 4096);
    file = open(name, O_RDONLY);
    for (int tries = 0; tries < 1000 && !error; tries++) {
        usleep(2000);
        error = stored(file);
    }
    printf("%d ", error);
    printf("%d ", stored(file));
    printf("%d\n", stored(open(name, O_RDONLY)));
}

static void hold(const char *name)
{
    mapped = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, open(name, O_RDWR), 0);
    for (int at = 0; at < BYTES; at += 4096)
        mapped[at] = 'h';
    close(open("held", O_CREAT | O_WRONLY, 0600));
    pause();
}

static void on_bus_error(int number)
{
    (void)number;
    siglongjmp(again, 1);
}

static void *look(void *unused)
{
    while (!is_over) {
        if (sigsetjmp(again, 1))
            continue;
        char byte = mapped[4096];
        wrong += byte != 0 && byte != 'x';
    }
    return unused;
}

// A page is looked at while the file is cut.
static void cut(const char *name)
{
    pthread_t looker;
    char byte = 0;
    int file = open(name, O_RDWR);
    signal(SIGBUS, on_bus_error);
    mapped = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    pthread_create(&looker, 0, look, 0);
    for (int round = 0; round < ROUNDS; round++)
        if (ftruncate(file, 0) || ftruncate(file, 8192) || pwrite(file, "x", 1, 4096) != 1)
            wrong++;
    is_over = 1;
    pthread_join(looker, 0);
    pread(file, &byte, 1, 4096);
    printf("%d %c %c\n", wrong, byte, mapped[4096]);
}

int main(int count, char **words)
{
    if (count < 3)
        return 1;
    if (!strcmp(words[1], "lose"))
        lose(words[2]);
    if (!strcmp(words[1], "orphan"))
        orphan(words[2]);
    if (!strcmp(words[1], "hold"))
        hold(words[2]);
    if (!strcmp(words[1], "cut"))
        cut(words[2]);
    return 0;
}
