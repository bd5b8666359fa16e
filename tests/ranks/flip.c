/* Loaded into a process (LD_PRELOAD): a bit of its memory changes, as by a fault of the machine. Of rank
 * FLIP_RANK, in the first mapping of FLIP_BYTES bytes that reserves nothing (the arena), at byte FLIP_AT, as
 * soon as the file FLIP_WHEN has something in it: FLIP_TIMES times, a millisecond apart. */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static off_t victim; /* its address */

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

static void *flip(void *arg)
{
    const char *when = getenv("FLIP_WHEN");
    const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC); /* the mapping may go meanwhile */
    struct stat s = {0};
    unsigned char byte;
    (void)arg;
    while (stat(when, &s) || !s.st_size) nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (uint64_t i = number_of("FLIP_TIMES"); i; i--) {
        if (pread(memory, &byte, 1, victim) != 1) break;
        byte ^= 1;
        if (pwrite(memory, &byte, 1, victim) != 1) break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    close(memory);
    return NULL;
}

static void begin(void *base)
{
    pthread_t thread;
    victim = (off_t)((uintptr_t)base + number_of("FLIP_AT"));
    if (!pthread_create(&thread, NULL, flip, NULL)) pthread_detach(thread);
}

static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *base = (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    const bool arena = rank && number_of("FLIP_BYTES") == bytes && flags & MAP_NORESERVE;
    if (arena && base != MAP_FAILED && strtoull(rank, NULL, 10) == number_of("FLIP_RANK") && !victim)
        begin(base);
    return base;
}

/* Which graphrun calls by the name that 64-bit offsets give it, and so is this one. */
__attribute__((visibility("default"))) void *mmap(void *at, size_t bytes, int protection, int flags, int fd,
                                                  off_t offset)
{
    return map(at, bytes, protection, flags, fd, offset);
}
