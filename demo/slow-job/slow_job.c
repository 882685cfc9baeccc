/* A small job with slow I/O, and the same mended: its traces `before` and `after` are beside this file.
 *
 * usage: slow_job before|after DIRECTORY     rank and number of ranks: PMIX_RANK, PMIX_SIZE
 *
 * Four times it computes for 0.3 s, then each rank adds 75 records of 47,008 bytes to one shared file, and rank 0 writes
 * small records of its own. `before` writes each record where it belongs and syncs it; `after` collects records into
 * aligned blocks of 1 MiB in a region of its own, and syncs once a step.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 4, RECORDS = 75, RECORD = 47008, BLOCK = 1 << 20, HEADER = 600 };

static void must(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static long number(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

int main(int argc, char **argv)
{
    static char block[BLOCK];
    long rank = number("PMIX_RANK"), ranks = number("PMIX_SIZE");
    int before = argc > 1 && strcmp(argv[1], "before") == 0;
    must(argc == 3 && ranks > 0 && chdir(argv[2]) == 0, "usage: slow_job before|after DIRECTORY");
    int state = open("state.dat", O_WRONLY | O_CREAT, 0644);
    int head = rank == 0 ? open("state.head", O_WRONLY | O_CREAT, 0644) : -1;
    must(state >= 0, "state.dat");
    memset(block, 'x', sizeof block);
    for (long step = 0; step < STEPS; step++) {
        usleep(300000);
        long bytes = (long)RECORDS * RECORD, blocks = (bytes + BLOCK - 1) / BLOCK;
        for (long at = 0; before && at < RECORDS; at++) {
            off_t place = ((step * RECORDS + at) * ranks + rank) * (off_t)RECORD;
            must(pwrite(state, block, RECORD, place) == RECORD, "write");
            must(fsync(state) == 0, "fsync");
        }
        for (long at = 0; !before && at < blocks; at++) {
            off_t place = ((step * ranks + rank) * blocks + at) * (off_t)BLOCK;
            must(pwrite(state, block, BLOCK, place) == BLOCK, "write");
        }
        for (long at = 0; rank == 0 && at < RECORDS; at++) {
            must(pwrite(head, block, HEADER, (step * RECORDS + at) * HEADER) == HEADER, "write");
            must(!before || fsync(head) == 0, "fsync");
        }
        must(fsync(state) == 0, "fsync");
    }
    return 0;
}
