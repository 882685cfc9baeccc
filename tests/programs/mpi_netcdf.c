/* Parallel netCDF-4 over several mounts of one buffer: usage
 *
 *     mpi_netcdf ROWS ROUNDS MNT...
 *
 * All ranks make one file with a variable of ROWS rows a rank and COLUMNS columns, and one whose first dimension grows, a record of
 * all ranks in each round; written independently and collectively. Then it is closed, and each rank reads what its
 * neighbour wrote on another mount. Prints `checked N bytes`. */

#include "ranks.h"
#include <netcdf.h>
#include <netcdf_par.h>

/* Columns of a row: 47008 bytes. */
#define COLUMNS 5876

static size_t rows;

#define GOOD(call)                                                                                \
    do {                                                                                          \
        int code_ = (call);                                                                       \
        if (code_ != NC_NOERR)                                                                    \
            fail("line %d: %s: %s", __LINE__, #call, nc_strerror(code_));                         \
    } while (0)

static int open_file(const char *mount, int mode, int create)
{
    char path[PATH_BYTES];
    int file;
    snprintf(path, sizeof path, "%s/parallel.nc", mount);
    if (create)
        GOOD(nc_create_par(path, NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    else
        GOOD(nc_open_par(path, mode, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    return file;
}

static void make_variables(int file)
{
    int dimensions[3], variable;
    GOOD(nc_def_dim(file, "round", NC_UNLIMITED, &dimensions[0]));
    GOOD(nc_def_dim(file, "row", rows * (size_t)ranks, &dimensions[1]));
    GOOD(nc_def_dim(file, "column", COLUMNS, &dimensions[2]));
    GOOD(nc_def_var(file, "fixed", NC_UINT64, 2, &dimensions[1], &variable));
    GOOD(nc_def_var(file, "growing", NC_UINT64, 3, dimensions, &variable));
    GOOD(nc_enddef(file));
}

/* Byte of the fixed variable at which the rows of `who` begin. */
static uint64_t place(int who)
{
    return (uint64_t)who * rows * COLUMNS * 8;
}

/* The rows of `who` in a variable. */
static int select_rows(int file, const char *name, int who, int round, int access, size_t *from, size_t *count)
{
    int variable, grows = strcmp(name, "growing") == 0;
    GOOD(nc_inq_varid(file, name, &variable));
    GOOD(nc_var_par_access(file, variable, access));
    size_t at = 0;
    if (grows) {
        from[at] = (size_t)round - 1;
        count[at++] = 1;
    }
    from[at] = (size_t)who * rows;
    count[at++] = rows;
    from[at] = 0;
    count[at] = COLUMNS;
    return variable;
}

static void write_rows(int file, const char *name, int access, int round, unsigned long long *data)
{
    size_t from[3], count[3];
    int variable = select_rows(file, name, rank, round, access, from, count);
    fill(data, place(rank), rows * COLUMNS * 8, rank, round);
    GOOD(nc_put_vara_ulonglong(file, variable, from, count, data));
}

static void check_rows(int file, const char *name, int access, int round, unsigned long long *data)
{
    size_t from[3], count[3];
    int variable = select_rows(file, name, neighbour, round, access, from, count);
    memset(data, 0, rows * COLUMNS * 8);
    GOOD(nc_get_vara_ulonglong(file, variable, from, count, data));
    check(data, place(neighbour), rows * COLUMNS * 8, neighbour, round);
}

int main(int count, char **arguments)
{
    const char *mount = begin(&count, &arguments, 3);
    rows = (size_t)atoi(arguments[1]);
    int rounds = atoi(arguments[2]);
    unsigned long long *data = malloc(rows * COLUMNS * 8);
    for (int round = 1; round <= rounds; round++) {
        int file = open_file(mount, NC_WRITE, round == 1);
        if (round == 1)
            make_variables(file);
        write_rows(file, "fixed", round % 2 ? NC_INDEPENDENT : NC_COLLECTIVE, round, data);
        /* A variable that grows is written by collective calls only. */
        write_rows(file, "growing", NC_COLLECTIVE, round, data);
        GOOD(nc_close(file));
        MUST(MPI_Barrier(MPI_COMM_WORLD));
        file = open_file(mount, NC_NOWRITE, 0);
        check_rows(file, "fixed", NC_INDEPENDENT, round, data);
        for (int earlier = 1; earlier <= round; earlier++)
            check_rows(file, "growing", NC_COLLECTIVE, earlier, data);
        GOOD(nc_close(file));
        /* Nobody writes the next round while another still reads this one. */
        MUST(MPI_Barrier(MPI_COMM_WORLD));
    }
    free(data);
    return end();
}
