/* What the MPI programs of the tests have in common: which mount a rank works on, the bytes that
 * it writes, and how they are checked. Included by mpi_files.c, mpi_hdf5.c and mpi_netcdf.c.
 *
 * Ranks stand for nodes: rank r has its files below mount r % mounts. The number of ranks is a
 * multiple of the number of mounts, and a rank checks what its neighbour (r + 1) % ranks wrote:
 * with two and more mounts never its own mount's bytes. Each byte depends on its place, on who
 * wrote it and on the round, so a stale, a misplaced and a torn one are all found. */

#ifndef RANKS_H
#define RANKS_H

#include <inttypes.h>
#include <mpi.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bytes of a path. */
#define PATH_BYTES 4096
/* How long a rank that waits for another one sleeps before it looks again. */
#define LOOK_NS 50000

/* Open MPI waits in a loop that gives the processor away in each round (mpi_yield_when_idle). Where nobody else wants it the rank has it
 * back at once, and keeps it busy for as long as it waits: from tests beside this one, and from the mounts that it waits for. So a rank
 * sleeps instead. The dynamic linker finds this function before that of the C library. MPICH does not call it. */
int sched_yield(void)
{
    struct timespec pause = {0, LOOK_NS};
    nanosleep(&pause, NULL);
    return 0;
}

static int rank, ranks, neighbour;
/* Ranks call MPI_File_sync on both sides of the barrier between writing and reading, as the standard of MPI wants it: the
 * environment variable RANKS_SYNC is set. Without, a write that returned is to be seen everywhere. */
static int syncs;
/* Bytes that this rank found right. */
static uint64_t checked;

/* Says why and ends all ranks. */
static void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

/* A call of MPI that has to succeed. */
#define MUST(call)                                                            \
    do {                                                                      \
        int code_ = (call);                                                   \
        if (code_ != MPI_SUCCESS) {                                           \
            char text_[MPI_MAX_ERROR_STRING];                                 \
            int length_;                                                      \
            MPI_Error_string(code_, text_, &length_);                         \
            fail("line %d: %s: %s", __LINE__, #call, text_);                  \
        }                                                                     \
    } while (0)

/* Starts MPI; mounts are the arguments from `first`. Gives this rank's mount. */
static const char *begin(int *count, char ***arguments, int first)
{
    MUST(MPI_Init(count, arguments));
    MUST(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    MUST(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
    int mounts = *count - first;
    if (mounts < 1 || ranks % mounts != 0)
        fail("%d ranks on %d mounts", ranks, mounts);
    neighbour = (rank + 1) % ranks;
    syncs = getenv("RANKS_SYNC") != NULL;
    return (*arguments)[first + rank % mounts];
}

/* The word at byte `at` of what `who` writes in `round` (splitmix64). */
static uint64_t word(uint64_t at, int who, int round)
{
    uint64_t x = at + ((uint64_t)who << 40) + ((uint64_t)round << 52) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* `bytes` (a multiple of 8) of `who` from byte `at` of the file on. */
static void fill(void *to, uint64_t at, size_t bytes, int who, int round)
{
    uint64_t *words = to;
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = word(at + 8 * i, who, round);
}

static void check(const void *from, uint64_t at, size_t bytes, int who, int round)
{
    const uint64_t *words = from;
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t wanted = word(at + 8 * i, who, round);
        if (words[i] != wanted)
            fail("round %d: byte %" PRIu64 " of rank %d is %016" PRIx64 ", not %016" PRIx64
                 " (in the round before: %016" PRIx64 ")",
                 round, at + 8 * i, who, words[i], wanted, word(at + 8 * i, who, round - 1));
    }
    checked += bytes;
}

/* Says how much all ranks found right, and ends. */
static int end(void)
{
    uint64_t all = 0;
    MUST(MPI_Reduce(&checked, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD));
    if (rank == 0)
        printf("checked %" PRIu64 " bytes\n", all);
    MUST(MPI_Finalize());
    return 0;
}

#endif
