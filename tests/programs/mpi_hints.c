/* What hints of MPI-IO do: usage
 *
 *     mpi_hints HINT=VALUE[,HINT=VALUE]... PIECES BYTES MNT...
 *
 * All ranks write one file by one collective call, PIECES of BYTES (a multiple of 8) each, in turn. Says of each rank
 *
 *     rank R wrote B bytes by C calls
 *
 * which is what the kernel counted meanwhile (/proc/self/io): who writes, and in what pieces, is what hints decide. Then each rank reads its
 * neighbour's pieces, on another mount, by a collective call under the same hints, and checks them. `-` is no hint. The file stays. */

#include "ranks.h"

static int pieces;
static uint64_t size;

/* Bytes that this process has written until now, and calls of write(2) and its like. */
static void counted(uint64_t *bytes, uint64_t *calls)
{
    char name[64];
    uint64_t value;
    int found = 0;
    FILE *io = fopen("/proc/self/io", "r");
    if (io == NULL)
        fail("/proc/self/io: %m");
    while (fscanf(io, "%63s %" SCNu64, name, &value) == 2) {
        if (strcmp(name, "wchar:") == 0) {
            *bytes = value;
            found++;
        } else if (strcmp(name, "syscw:") == 0) {
            *calls = value;
            found++;
        }
    }
    fclose(io);
    if (found != 2)
        fail("/proc/self/io does not tell what was written");
}

static MPI_Info hints(char *text)
{
    MPI_Info info;
    MUST(MPI_Info_create(&info));
    for (char *at = strtok(text, ","); at != NULL && strcmp(text, "-") != 0; at = strtok(NULL, ",")) {
        char *value = strchr(at, '=');
        if (value == NULL)
            fail("%s is no hint", at);
        *value++ = '\0';
        MUST(MPI_Info_set(info, at, value));
    }
    return info;
}

static uint64_t place(int who, int i)
{
    return ((uint64_t)i * ranks + who) * size;
}

/* A view of only one rank's pieces. */
static void set_view(MPI_File file, int who, MPI_Datatype *type)
{
    MUST(MPI_Type_vector(pieces, (int)size, ranks * (int)size, MPI_BYTE, type));
    MUST(MPI_Type_commit(type));
    MPI_Offset from = (MPI_Offset)who * (MPI_Offset)size;
    MUST(MPI_File_set_view(file, from, MPI_BYTE, *type, "native", MPI_INFO_NULL));
}

static void write_counted(MPI_File file, char *all, int bytes)
{
    uint64_t before[2] = {0, 0}, after[2] = {0, 0};
    uint64_t *of_all = malloc((size_t)ranks * sizeof after);
    if (of_all == NULL)
        fail("no memory");
    for (int i = 0; i < pieces; i++)
        fill(all + (size_t)i * size, place(rank, i), size, rank, 1);
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    counted(&before[0], &before[1]);
    MUST(MPI_File_write_at_all(file, 0, all, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    counted(&after[0], &after[1]);
    after[0] -= before[0];
    after[1] -= before[1];
    MUST(MPI_Gather(after, 2, MPI_UINT64_T, of_all, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD));
    for (int who = 0; rank == 0 && who < ranks; who++)
        printf("rank %d wrote %" PRIu64 " bytes by %" PRIu64 " calls\n", who, of_all[2 * who], of_all[2 * who + 1]);
    free(of_all);
}

int main(int count, char **arguments)
{
    const char *mount = begin(&count, &arguments, 4);
    char path[PATH_BYTES];
    MPI_File file;
    MPI_Datatype type;
    MPI_Info info = hints(arguments[1]);
    pieces = atoi(arguments[2]);
    size = strtoull(arguments[3], NULL, 10);
    size_t bytes = (size_t)pieces * size;
    char *all = malloc(bytes);
    if (all == NULL)
        fail("no memory for %zu bytes", bytes);
    snprintf(path, sizeof path, "%s/hints", mount);
    MUST(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    set_view(file, rank, &type);
    write_counted(file, all, (int)bytes);
    MUST(MPI_Type_free(&type));
    if (syncs)
        MUST(MPI_File_sync(file));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    if (syncs)
        MUST(MPI_File_sync(file));
    set_view(file, neighbour, &type);
    memset(all, 0, bytes);
    MUST(MPI_File_read_at_all(file, 0, all, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < pieces; i++)
        check(all + (size_t)i * size, place(neighbour, i), size, neighbour, 1);
    MUST(MPI_Type_free(&type));
    MUST(MPI_File_close(&file));
    MUST(MPI_Info_free(&info));
    free(all);
    return end();
}
