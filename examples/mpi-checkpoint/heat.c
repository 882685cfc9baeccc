/*
 * Heat in a rod, with checkpoints: each rank has a part of the rod, and all ranks write one checkpoint file with collective
 * MPI-IO. Started again, the program continues from its last checkpoint.
 *
 * usage: mpirun -n RANKS heat DIR STEPS
 *
 * DIR is a directory of a buffer that all ranks see: a mount on one node, or a mount of the same buffer on each node. Each
 * checkpoint is written beside the last one and then renamed, so DIR/checkpoint is always a whole one.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_PER_RANK 65536
#define STEPS_PER_CHECKPOINT 5
#define HEADER_BYTES 8

static void fail(const char *what, int error) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(error, text, &length);
    fprintf(stderr, "heat: %s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(const char *what, int error) {
    if (error != MPI_SUCCESS) fail(what, error);
}

/* The step that the checkpoint is of, or 0 if there is none. */
static long long load(const char *path, double *cells, int rank) {
    long long step = 0;
    MPI_File file;
    if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file) != MPI_SUCCESS) return 0;
    MPI_Offset at = HEADER_BYTES + (MPI_Offset)rank * CELLS_PER_RANK * (MPI_Offset)sizeof(double);
    check("read the step", MPI_File_read_at_all(file, 0, &step, HEADER_BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    check("read", MPI_File_read_at_all(file, at, cells, CELLS_PER_RANK, MPI_DOUBLE, MPI_STATUS_IGNORE));
    check("close", MPI_File_close(&file));
    return step;
}

static void save(const char *path, const double *cells, int rank, long long step) {
    char fresh[4096];
    MPI_File file;
    snprintf(fresh, sizeof fresh, "%s.part", path);
    check(fresh, MPI_File_open(MPI_COMM_WORLD, fresh, MPI_MODE_WRONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    MPI_Offset at = HEADER_BYTES + (MPI_Offset)rank * CELLS_PER_RANK * (MPI_Offset)sizeof(double);
    if (rank == 0) check("write the step", MPI_File_write_at(file, 0, &step, HEADER_BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    check("write", MPI_File_write_at_all(file, at, cells, CELLS_PER_RANK, MPI_DOUBLE, MPI_STATUS_IGNORE));
    /* On flash, and seen by the other ranks: MPI_File_sync calls fsync(). */
    check("sync", MPI_File_sync(file));
    check("close", MPI_File_close(&file));
    if (rank == 0 && rename(fresh, path) != 0) {
        perror("heat: rename the checkpoint");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int rank, ranks;
    char path[4000];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 3) {
        if (rank == 0) fprintf(stderr, "usage: mpirun -n RANKS heat DIR STEPS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    snprintf(path, sizeof path, "%s/checkpoint", argv[1]);
    long long last = atoll(argv[2]);

    /* A cell more on each side: those of the neighbours. */
    double *cells = calloc(CELLS_PER_RANK + 2, sizeof *cells);
    double *next = calloc(CELLS_PER_RANK + 2, sizeof *next);
    if (!cells || !next) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 1; i <= CELLS_PER_RANK; i++) cells[i] = (rank * CELLS_PER_RANK + i) % 1000;

    long long step = load(path, cells + 1, rank);
    if (rank == 0) printf("begins at step %lld\n", step);
    int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    while (step < last) {
        MPI_Sendrecv(&cells[1], 1, MPI_DOUBLE, left, 0, &cells[CELLS_PER_RANK + 1], 1, MPI_DOUBLE, right, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(&cells[CELLS_PER_RANK], 1, MPI_DOUBLE, right, 1, &cells[0], 1, MPI_DOUBLE, left, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 1; i <= CELLS_PER_RANK; i++) next[i] = cells[i] + 0.1 * (cells[i - 1] - 2 * cells[i] + cells[i + 1]);
        double *old = cells;
        cells = next;
        next = old;
        step++;
        if (step % STEPS_PER_CHECKPOINT == 0 || step == last) save(path, cells + 1, rank, step);
    }
    if (rank == 0) printf("ended at step %lld\n", step);
    free(cells);
    free(next);
    MPI_Finalize();
    return 0;
}
