// A private mapping beside a shared one of the same file: what was written to it stays when the file is stored.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 3 * 4096 };

int main(void)
{
    static char page[4096];
    int file = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, BYTES))
        return 1;
    char *shared = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *own = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (shared == MAP_FAILED || own == MAP_FAILED)
        return 2;
    strcpy(own, "own");
    for (int round = 0; round < 3; round++) {
        strcpy(shared, "shared");
        strcpy(shared + 4096, "second");
        if (msync(shared, BYTES, MS_SYNC))
            return 3;
    }
    if (pread(file, page, sizeof page, 0) != sizeof page)
        return 4;
    printf("%s %s %s\n", own, shared, page);
    return 0;
}
