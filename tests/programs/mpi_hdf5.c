/* Parallel HDF5 over several mounts of one buffer: usage
 *
 *     mpi_hdf5 ROWS ROUNDS MNT...
 *
 * All ranks make one file with a contiguous and a chunked dataset of ROWS rows a rank and COLUMNS
 * columns, written independently and collectively, and an attribute. Then it is closed, and each
 * rank reads its neighbour's rows, who wrote them on another mount. Later rounds open the file
 * again, write over it and extend the chunked dataset. Prints `checked N bytes`. */

#include "ranks.h"
#include <hdf5.h>

/* Columns of a dataset: 47008 bytes a row. */
#define COLUMNS 5876
/* A chunk is no divisor of a rank's rows: chunks are shared by ranks of two mounts. */
#define CHUNK_ROWS 3
#define CHUNK_COLUMNS 1469

static hsize_t rows;

static hid_t good(hid_t id, const char *what, int line)
{
    if (id < 0) {
        H5Eprint2(H5E_DEFAULT, stderr);
        fail("line %d: %s", line, what);
    }
    return id;
}
#define GOOD(call) good((hid_t)(call), #call, __LINE__)

static hid_t open_file(const char *mount, unsigned flags, int create)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/parallel.h5", mount);
    hid_t access = GOOD(H5Pcreate(H5P_FILE_ACCESS));
    GOOD(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL));
    hid_t file = create ? GOOD(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access))
                        : GOOD(H5Fopen(path, flags, access));
    H5Pclose(access);
    return file;
}

static void make_datasets(hid_t file)
{
    hsize_t size[2] = {rows * (hsize_t)ranks, COLUMNS}, chunk[2] = {CHUNK_ROWS, CHUNK_COLUMNS};
    hsize_t most[2] = {H5S_UNLIMITED, COLUMNS};
    hid_t space = GOOD(H5Screate_simple(2, size, NULL));
    GOOD(H5Dclose(GOOD(H5Dcreate2(file, "whole", H5T_NATIVE_UINT64, space, H5P_DEFAULT, H5P_DEFAULT,
                                  H5P_DEFAULT))));
    H5Sclose(space);
    space = GOOD(H5Screate_simple(2, size, most));
    hid_t layout = GOOD(H5Pcreate(H5P_DATASET_CREATE));
    GOOD(H5Pset_chunk(layout, 2, chunk));
    GOOD(H5Dclose(GOOD(H5Dcreate2(file, "chunked", H5T_NATIVE_UINT64, space, H5P_DEFAULT, layout,
                                  H5P_DEFAULT))));
    H5Pclose(layout);
    H5Sclose(space);
}

/* The rows of `who` in a dataset: memory space, file space, and where they begin in it. */
static uint64_t select_rows(hid_t dataset, int who, hid_t *memory, hid_t *space)
{
    hsize_t from[2] = {rows * (hsize_t)who, 0}, count[2] = {rows, COLUMNS};
    *memory = GOOD(H5Screate_simple(2, count, NULL));
    *space = GOOD(H5Dget_space(dataset));
    GOOD(H5Sselect_hyperslab(*space, H5S_SELECT_SET, from, NULL, count, NULL));
    return from[0] * COLUMNS * 8;
}

static hid_t transfer(int collective)
{
    hid_t list = GOOD(H5Pcreate(H5P_DATASET_XFER));
    GOOD(H5Pset_dxpl_mpio(list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT));
    return list;
}

static void write_rows(hid_t file, const char *name, int collective, int round, void *data)
{
    hid_t dataset = GOOD(H5Dopen2(file, name, H5P_DEFAULT)), memory, space;
    uint64_t at = select_rows(dataset, rank, &memory, &space);
    fill(data, at, rows * COLUMNS * 8, rank, round);
    hid_t list = transfer(collective);
    GOOD(H5Dwrite(dataset, H5T_NATIVE_UINT64, memory, space, list, data));
    H5Pclose(list);
    H5Sclose(memory);
    H5Sclose(space);
    GOOD(H5Dclose(dataset));
}

static void check_rows(hid_t file, const char *name, int collective, int round, void *data)
{
    hid_t dataset = GOOD(H5Dopen2(file, name, H5P_DEFAULT)), memory, space;
    uint64_t at = select_rows(dataset, neighbour, &memory, &space);
    memset(data, 0, rows * COLUMNS * 8);
    hid_t list = transfer(collective);
    GOOD(H5Dread(dataset, H5T_NATIVE_UINT64, memory, space, list, data));
    check(data, at, rows * COLUMNS * 8, neighbour, round);
    H5Pclose(list);
    H5Sclose(memory);
    H5Sclose(space);
    GOOD(H5Dclose(dataset));
}

/* The attribute says which round the file holds. */
static void set_round(hid_t file, int round)
{
    if (GOOD(H5Aexists(file, "round")))
        GOOD(H5Adelete(file, "round"));
    hid_t space = GOOD(H5Screate(H5S_SCALAR));
    hid_t attribute = GOOD(H5Acreate2(file, "round", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT));
    GOOD(H5Awrite(attribute, H5T_NATIVE_INT, &round));
    H5Aclose(attribute);
    H5Sclose(space);
}

static void check_round(hid_t file, int round)
{
    int found = -1;
    hid_t attribute = GOOD(H5Aopen(file, "round", H5P_DEFAULT));
    GOOD(H5Aread(attribute, H5T_NATIVE_INT, &found));
    if (found != round)
        fail("the file is of round %d, not %d", found, round);
    H5Aclose(attribute);
}

static void extend(hid_t file, int round)
{
    hid_t dataset = GOOD(H5Dopen2(file, "chunked", H5P_DEFAULT));
    hsize_t size[2] = {rows * (hsize_t)ranks + CHUNK_ROWS * (hsize_t)round, COLUMNS};
    GOOD(H5Dset_extent(dataset, size));
    GOOD(H5Dclose(dataset));
}

int main(int count, char **arguments)
{
    const char *mount = begin(&count, &arguments, 3);
    rows = (hsize_t)atoi(arguments[1]);
    int rounds = atoi(arguments[2]);
    void *data = malloc(rows * COLUMNS * 8);
    for (int round = 1; round <= rounds; round++) {
        hid_t file = open_file(mount, H5F_ACC_RDWR, round == 1);
        if (round == 1)
            make_datasets(file);
        else
            extend(file, round);
        set_round(file, round);
        write_rows(file, "whole", round % 2, round, data);
        write_rows(file, "chunked", 1, round, data);
        /* What a rank's close has made visible is there for others after a barrier. */
        GOOD(H5Fclose(file));
        MUST(MPI_Barrier(MPI_COMM_WORLD));
        file = open_file(mount, H5F_ACC_RDONLY, 0);
        check_round(file, round);
        check_rows(file, "whole", 0, round, data);
        check_rows(file, "chunked", round % 2, round, data);
        GOOD(H5Fclose(file));
    }
    free(data);
    return end();
}
