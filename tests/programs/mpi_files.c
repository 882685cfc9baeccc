/* MPI-IO as IOR does it, over several mounts of one buffer: usage
 *
 *     mpi_files PATTERN TRANSFERS ROUNDS MNT...
 *
 * Each rank writes TRANSFERS pieces of 47008 bytes, by the pattern; its neighbour, on another
 * mount, reads all of them back by MPI-IO and by pread(2), in every round. Nothing but a barrier
 * stands between writing and reading, or calls of MPI_File_sync (ranks.h).
 *
 * Patterns: `own` (a file a rank, N-N), `segmented` (one file, each rank its part of it, N-1),
 * `strided` (one file, the ranks' pieces in turn), `collective` (the same by a file view and
 * collective calls), `sieved` (the same by a file view and independent calls: ROMIO reads, changes and writes ranges with
 * pieces of other ranks, under locks), `ordered` (one file by the shared file pointer), `atomic` (all ranks write
 * the same pieces in atomic mode: each piece is one rank's). Prints `checked N bytes`. */

#include "ranks.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of a transfer: a multiple of 8 and of no power of two above 32. */
#define TRANSFER 47008

enum pattern { OWN, SEGMENTED, STRIDED, COLLECTIVE, SIEVED, ORDERED, ATOMIC, PATTERNS };
static const char *const NAMES[] = {"own", "segmented", "strided", "collective",
                                    "sieved", "ordered", "atomic"};

static enum pattern pattern;
static int transfers;
static char buffer[TRANSFER] __attribute__((aligned(8)));

/* Where the file has transfer `i` of rank `who`. */
static uint64_t place(int who, int i)
{
    switch (pattern) {
    case SEGMENTED:
        return ((uint64_t)who * transfers + i) * TRANSFER;
    case STRIDED:
    case COLLECTIVE:
    case SIEVED:
    case ORDERED:
        return ((uint64_t)i * ranks + who) * TRANSFER;
    default:
        return (uint64_t)i * TRANSFER;
    }
}

static uint64_t file_bytes(void)
{
    int shared = pattern != OWN && pattern != ATOMIC;
    return (uint64_t)(shared ? ranks : 1) * transfers * TRANSFER;
}

static void open_file(const char *mount, int who, int mode, MPI_File *file, char *path)
{
    if (pattern == OWN)
        snprintf(path, PATH_BYTES, "%s/%s.%d", mount, NAMES[pattern], who);
    else
        snprintf(path, PATH_BYTES, "%s/%s", mount, NAMES[pattern]);
    MPI_Comm who_opens = pattern == OWN ? MPI_COMM_SELF : MPI_COMM_WORLD;
    MUST(MPI_File_open(who_opens, path, mode, MPI_INFO_NULL, file));
}

/* A view of only one rank's pieces. */
static void set_view(MPI_File file, int who, MPI_Datatype *type)
{
    MUST(MPI_Type_vector(transfers, TRANSFER, ranks * TRANSFER, MPI_BYTE, type));
    MUST(MPI_Type_commit(type));
    MPI_Offset from = (MPI_Offset)who * TRANSFER;
    MUST(MPI_File_set_view(file, from, MPI_BYTE, *type, "native", MPI_INFO_NULL));
}

static void write_view(MPI_File file, int round)
{
    size_t bytes = (size_t)transfers * TRANSFER;
    char *all = malloc(bytes);
    for (int i = 0; i < transfers; i++)
        fill(all + (size_t)i * TRANSFER, place(rank, i), TRANSFER, rank, round);
    MPI_Datatype type;
    set_view(file, rank, &type);
    if (pattern == SIEVED)
        MUST(MPI_File_write_at(file, 0, all, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    else
        MUST(MPI_File_write_at_all(file, 0, all, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_Type_free(&type));
    free(all);
}

static void read_view(MPI_File file, int round)
{
    size_t bytes = (size_t)transfers * TRANSFER;
    char *all = calloc(1, bytes);
    MPI_Datatype type;
    set_view(file, neighbour, &type);
    if (pattern == SIEVED)
        MUST(MPI_File_read_at(file, 0, all, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    else
        MUST(MPI_File_read_at_all(file, 0, all, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < transfers; i++)
        check(all + (size_t)i * TRANSFER, place(neighbour, i), TRANSFER, neighbour, round);
    MUST(MPI_Type_free(&type));
    free(all);
}

static void write_all(MPI_File file, int round)
{
    if (pattern == COLLECTIVE || pattern == SIEVED) {
        write_view(file, round);
        return;
    }
    if (pattern == ORDERED)
        MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    for (int i = 0; i < transfers; i++) {
        uint64_t at = place(rank, i);
        fill(buffer, at, TRANSFER, rank, round);
        if (pattern == ORDERED)
            MUST(MPI_File_write_ordered(file, buffer, TRANSFER, MPI_BYTE, MPI_STATUS_IGNORE));
        else
            MUST(MPI_File_write_at(file, (MPI_Offset)at, buffer, TRANSFER, MPI_BYTE, MPI_STATUS_IGNORE));
    }
}

/* In atomic mode a piece is whole, whoever won. */
static void check_whole(uint64_t at, int round)
{
    for (int who = 0; who < ranks; who++) {
        if (*(uint64_t *)buffer == word(at, who, round)) {
            check(buffer, at, TRANSFER, who, round);
            return;
        }
    }
    fail("round %d: nobody wrote what stands at byte %" PRIu64, round, at);
}

static void check_piece(uint64_t at, int round)
{
    if (pattern == ATOMIC)
        check_whole(at, round);
    else
        check(buffer, at, TRANSFER, neighbour, round);
}

static void read_all(MPI_File file, const char *path, int round)
{
    if (pattern == COLLECTIVE || pattern == SIEVED) {
        read_view(file, round);
    } else {
        for (int i = 0; i < transfers; i++) {
            uint64_t at = place(neighbour, i);
            memset(buffer, 0, TRANSFER);
            MUST(MPI_File_read_at(file, (MPI_Offset)at, buffer, TRANSFER, MPI_BYTE, MPI_STATUS_IGNORE));
            check_piece(at, round);
        }
    }
    int fd = open(path, O_RDONLY);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0)
        fail("open %s: %m", path);
    if ((uint64_t)stat.st_size != file_bytes())
        fail("%s has %lld bytes, not %" PRIu64, path, (long long)stat.st_size, file_bytes());
    for (int i = 0; i < transfers; i++) {
        uint64_t at = place(neighbour, i);
        memset(buffer, 0, TRANSFER);
        if (pread(fd, buffer, TRANSFER, (off_t)at) != TRANSFER)
            fail("read %s at %" PRIu64 ": %m", path, at);
        check_piece(at, round);
    }
    close(fd);
}

static void one_round(const char *mount, int round)
{
    char path[PATH_BYTES];
    MPI_File file;
    open_file(mount, rank, MPI_MODE_CREATE | MPI_MODE_RDWR, &file, path);
    if (pattern == ATOMIC)
        MUST(MPI_File_set_atomicity(file, 1));
    /* Every other round begins with an empty file, the others write over the old bytes. */
    if (round % 2 == 0)
        MUST(MPI_File_set_size(file, 0));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    write_all(file, round);
    if (syncs)
        MUST(MPI_File_sync(file));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    if (syncs)
        MUST(MPI_File_sync(file));
    if (pattern == OWN) {
        MPI_File other;
        open_file(mount, neighbour, MPI_MODE_RDONLY, &other, path);
        read_all(other, path, round);
        MUST(MPI_File_close(&other));
    } else {
        read_all(file, path, round);
    }
    MPI_Offset size;
    MUST(MPI_File_get_size(file, &size));
    if ((uint64_t)size != file_bytes())
        fail("round %d: MPI has %lld bytes, not %" PRIu64, round, (long long)size, file_bytes());
    /* Nobody writes the next round while another still reads this one. */
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    MUST(MPI_File_close(&file));
}

int main(int count, char **arguments)
{
    const char *mount = begin(&count, &arguments, 4);
    pattern = PATTERNS;
    for (int i = 0; i < PATTERNS; i++)
        if (strcmp(arguments[1], NAMES[i]) == 0)
            pattern = (enum pattern)i;
    if (pattern == PATTERNS)
        fail("no pattern %s", arguments[1]);
    transfers = atoi(arguments[2]);
    int rounds = atoi(arguments[3]);
    for (int round = 1; round <= rounds; round++)
        one_round(mount, round);
    return end();
}
