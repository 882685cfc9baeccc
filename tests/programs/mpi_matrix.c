/* MPI-IO in transfers of each size, over several mounts of one buffer: usage
 *
 *     mpi_matrix BYTES MOST SIZE[,SIZE]... MNT...
 *
 * For each SIZE (bytes of a transfer, a multiple of 8): one file for all ranks, their pieces in turn, and a file a rank; in the order of
 * the file and in a random one; by independent and by collective calls. A rank writes BYTES, in 2 to MOST transfers; its
 * neighbour, on another mount, reads all of them back in the same way and by pread(2), and each byte is checked. Files are removed after
 * each of these cases and made anew under the same name, so what an earlier one left would be found. Calls of MPI_File_sync and
 * `checked N bytes`: see ranks.h. */

#include "ranks.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the present case: its number, bytes of a transfer, transfers of a rank, and what kind it is. */
static int number;
static uint64_t size;
static int transfers;
static int shared, shuffled, collective;
/* One transfer, and the order in which transfers are moved. */
static char *buffer;
static int *order;

/* Where the file has transfer `i` of rank `who`. */
static uint64_t place(int who, int i)
{
    return (shared ? (uint64_t)i * ranks + who : (uint64_t)i) * size;
}

static void make_order(int who)
{
    for (int i = 0; i < transfers; i++)
        order[i] = i;
    for (int i = transfers - 1; shuffled && i > 0; i--) {
        int other = (int)(word((uint64_t)i, who, number) % (uint64_t)(i + 1));
        int kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static void name_file(const char *mount, int who, char *path)
{
    if (shared)
        snprintf(path, PATH_BYTES, "%s/matrix", mount);
    else
        snprintf(path, PATH_BYTES, "%s/matrix.%d", mount, who);
}

static void open_file(const char *path, int mode, MPI_File *file)
{
    MUST(MPI_File_open(shared ? MPI_COMM_WORLD : MPI_COMM_SELF, path, mode, MPI_INFO_NULL, file));
}

static void write_all(MPI_File file)
{
    make_order(rank);
    for (int i = 0; i < transfers; i++) {
        uint64_t at = place(rank, order[i]);
        fill(buffer, at, size, rank, number);
        if (collective)
            MUST(MPI_File_write_at_all(file, (MPI_Offset)at, buffer, (int)size, MPI_BYTE, MPI_STATUS_IGNORE));
        else
            MUST(MPI_File_write_at(file, (MPI_Offset)at, buffer, (int)size, MPI_BYTE, MPI_STATUS_IGNORE));
    }
}

static void read_all(MPI_File file)
{
    make_order(neighbour);
    for (int i = 0; i < transfers; i++) {
        uint64_t at = place(neighbour, order[i]);
        memset(buffer, 0, size);
        if (collective)
            MUST(MPI_File_read_at_all(file, (MPI_Offset)at, buffer, (int)size, MPI_BYTE, MPI_STATUS_IGNORE));
        else
            MUST(MPI_File_read_at(file, (MPI_Offset)at, buffer, (int)size, MPI_BYTE, MPI_STATUS_IGNORE));
        check(buffer, at, size, neighbour, number);
    }
}

/* What any program reads that knows nothing of MPI. */
static void read_plainly(const char *path)
{
    int fd = open(path, O_RDONLY);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0)
        fail("open %s: %m", path);
    uint64_t wanted = size * (uint64_t)transfers * (uint64_t)(shared ? ranks : 1);
    if ((uint64_t)stat.st_size != wanted)
        fail("%s has %lld bytes, not %" PRIu64, path, (long long)stat.st_size, wanted);
    for (int i = 0; i < transfers; i++) {
        uint64_t at = place(neighbour, order[i]);
        memset(buffer, 0, size);
        for (uint64_t done = 0; done < size;) {
            ssize_t count = pread(fd, buffer + done, size - done, (off_t)(at + done));
            if (count <= 0)
                fail("read %s at %" PRIu64 ": %s", path, at + done, count == 0 ? "it ends there" : strerror(errno));
            done += (uint64_t)count;
        }
        check(buffer, at, size, neighbour, number);
    }
    close(fd);
}

/* Nobody goes on before all have written, with the calls of MPI_File_sync that ranks.h tells of. */
static void meet(MPI_File file)
{
    if (syncs)
        MUST(MPI_File_sync(file));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    if (syncs)
        MUST(MPI_File_sync(file));
}

static void one_case(const char *mount)
{
    char own[PATH_BYTES], path[PATH_BYTES];
    MPI_File file, other;
    number++;
    name_file(mount, rank, own);
    open_file(own, MPI_MODE_CREATE | MPI_MODE_RDWR, &file);
    write_all(file);
    meet(file);
    name_file(mount, neighbour, path);
    if (shared) {
        read_all(file);
    } else {
        open_file(path, MPI_MODE_RDONLY, &other);
        read_all(other);
        MUST(MPI_File_close(&other));
    }
    read_plainly(path);
    MUST(MPI_File_close(&file));
    /* Nobody removes a file that another still reads, or makes a new one before the old one is gone. */
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    if (!shared || rank == 0)
        MUST(MPI_File_delete(own, MPI_INFO_NULL));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
}

int main(int count, char **arguments)
{
    const char *mount = begin(&count, &arguments, 4);
    uint64_t bytes = strtoull(arguments[1], NULL, 10);
    int most = atoi(arguments[2]);
    for (char *sizes = arguments[3], *at = strtok(sizes, ","); at != NULL; at = strtok(NULL, ",")) {
        size = strtoull(at, NULL, 10);
        uint64_t wanted = bytes / size;
        transfers = wanted < 2 ? 2 : wanted > (uint64_t)most ? most : (int)wanted;
        buffer = malloc(size);
        order = malloc((size_t)transfers * sizeof *order);
        if (buffer == NULL || order == NULL)
            fail("no memory for %" PRIu64 " bytes", size);
        for (int kind = 0; kind < 8; kind++) {
            shared = kind & 1;
            shuffled = (kind >> 1) & 1;
            collective = (kind >> 2) & 1;
            one_case(mount);
        }
        free(buffer);
        free(order);
    }
    return end();
}
