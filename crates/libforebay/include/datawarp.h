/*
 * The calls of DataWarp's library, for programs that were written for it. Link with -ldatawarp (pkg-config cray-datawarp).
 * libdatawarp.so is libforebay.so under another name: a program may use forebay.h as well, and fb_error() gives the message
 * of this thread's last call that failed.
 *
 * Paths in the buffer come first in every call, as they are mounted ($DW_JOB_STRIPED/...). A call returns 0, or -errno;
 * what else it returns stands beside it. A stage is the work of the buffer's server: it goes on when the program has
 * ended, and the end of the job waits for it. What a stage has brought to the PFS is fsynced and verified.
 */
#ifndef DATAWARP_H
#define DATAWARP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* When a stage out is done. */
enum dw_stage_type {
    DW_STAGE_IMMEDIATE = 0,
    DW_STAGE_AT_JOB_END = 1,        /* deferred: with the content that the file has then */
    DW_REVOKE_STAGE_AT_JOB_END = 2, /* a deferred stage is given up; -EINVAL if there is none */
    DW_ACTIVATE_DEFERRED_STAGE = 3  /* a deferred stage is done now; -EINVAL if there is none */
};

/*
 * Begin a copy and return. A file or directory has one stage at a time: -EBUSY while one is under way; a new one takes
 * the place of a deferred one. Directories go with all that is in them. Lists end in NULL; each of their files goes into
 * the directory under its last name. The directory that a file is staged out into must exist.
 */
int dw_stage_file_in(const char *dw_file, const char *pfs_file);
int dw_stage_directory_in(const char *dw_directory, const char *pfs_directory);
int dw_stage_list_in(const char *dw_directory, const char **pfs_list);
int dw_stage_file_out(const char *dw_file, const char *pfs_file, enum dw_stage_type type);
int dw_stage_directory_out(const char *dw_directory, const char *pfs_directory, enum dw_stage_type type);
int dw_stage_list_out(const char **dw_list, const char *pfs_directory, enum dw_stage_type type);

/*
 * How many stages are done, under way or waiting, deferred, and failed. Of one file one of the counts is 1; of a
 * directory they are those of all that was staged there. -EINVAL: the file was never staged. -ENOENT: it is not there.
 */
int dw_query_file_stage(const char *dw_file, int *complete, int *pending, int *deferred, int *failed);
int dw_query_directory_stage(const char *dw_directory, int *complete, int *pending, int *deferred, int *failed);
int dw_query_list_stage(const char **dw_list, int *complete, int *pending, int *deferred, int *failed);

/*
 * Wait for the end; no signal ends the wait. At once if the stage has ended: 0 if it is done, else why it failed
 * (-ECANCELED: it was terminated). -EINVAL: never staged, or deferred.
 */
int dw_wait_file_stage(const char *dw_file);
int dw_wait_directory_stage(const char *dw_directory);
int dw_wait_list_stage(const char **dw_list);

/* Stop a stage that is under way, waiting or deferred; -EINVAL if there is none. */
int dw_terminate_file_stage(const char *dw_file);
int dw_terminate_directory_stage(const char *dw_directory);
int dw_terminate_list_stage(const char **dw_list);

/* How many stages of the buffer run at once: a hint, of which the server takes 16 at most. */
int dw_set_stage_concurrency(const char *dw_instance_path, unsigned int concurrent_stages);

/*
 * The stage outs that have failed and stand so, one after the other: until the file is removed or a later stage of it is
 * done. Of a directory below the mount point only those in it.
 */
typedef struct dw_failed_stage dw_failed_stage_t;
int dw_open_failed_stage(const char *dw_instance_path, dw_failed_stage_t **handle);
/* The length of the path that was given, 0 after the last; *ret_errno is -errno of its failure. */
int dw_read_failed_stage(dw_failed_stage_t *handle, char *path, int path_size, int *ret_errno);
int dw_close_failed_stage(dw_failed_stage_t *handle);

/*
 * Layout of an open file or directory: bytes of a stripe, servers that it is spread over at most, and the first of them.
 * It is set before data is written; a directory gives it to new files. -ENOTTY: not in a buffer.
 */
int dw_get_stripe_configuration(int fd, int *stripe_size, int *stripe_width, int *starting_index);
int dw_set_stripe_configuration(int fd, int stripe_size, int stripe_width);

/* Where names are kept for a key: the path that was given, for all servers have all names. free() it. NULL: no memory. */
char *dw_get_mds_path(const char *dw_root, uint64_t key);

/*
 * Wait until an open file of a cache (#DW jobdw type=cache) is on the PFS with all that was written to it before, and
 * verified there. Of a file of another buffer: until its stage outs under way have ended. -EBADF: no open file.
 */
int dw_wait_sync_complete(int fd);

/*
 * What servers count of a buffer, as JSON: "realm" has "fragments" (one for each server), "namespaces" and their sums. Bytes
 * are those that servers moved; what a kernel reads and writes itself on the fast path is none of theirs. free() it.
 * NULL: *ecode is -errno.
 */
char *dw_get_accounting_data_json(const char *dw_path, int *ecode);

#ifdef __cplusplus
}
#endif

#endif
