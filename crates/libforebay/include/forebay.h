/*
 * libforebay: what a program may ask of the buffer that its files lie in. Link with -lforebay.
 *
 * Every call finds the buffer by the path it is given, asks that buffer's server and returns. What is
 * kept between calls is a thread's own. Calls block, have no threads and no runtime, may be made from any thread,
 * and after fork(). Paths are as open(2) takes them. The buffer must be mounted on this node.
 *
 * On failure a call returns -1, sets errno, and fb_error() gives the thread's message: what
 * failed, on which path, why, what to do. ENOTTY: the path is not in a mounted buffer. ENOTCONN: the
 * buffer's server is not running.
 *
 * Structs may grow at their end: pass sizeof; the library fills what both sides know.
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grades of safety, see docs/SEMANTICS.md. */
enum fb_grade {
    FB_LOST = 0,     /* a file of a cache: what the PFS does not have is gone from flash */
    FB_WRITTEN = 1,  /* survives the death of the application, the mount and the server */
    FB_ON_FLASH = 2, /* survives a power cut */
    FB_ON_PFS = 3    /* survives the loss of the buffer */
};

/* Where a path of a cache is between flash and PFS. */
enum fb_cache_state {
    FB_CACHE_CLEAN = 1,     /* the PFS has all of it */
    FB_CACHE_DIRTY = 2,     /* not all; it drains when its policy says so, or asked by fb_wait */
    FB_CACHE_DRAINING = 3,
    FB_CACHE_FAILED = 4,    /* drain_errno says why; it is tried again */
    FB_CACHE_CONFLICT = 5   /* both sides changed: `forebay resolve` decides */
};

/* State of a file or directory. */
struct fb_state {
    uint32_t grade;           /* enum fb_grade: what is certain of all its bytes now */
    uint32_t is_volatile;     /* 1: the buffer is in memory, a power cut loses it */
    uint64_t size_bytes;
    uint64_t dirty_bytes;     /* what the PFS does not have yet and will get by itself: of a
                                 scratch buffer nothing, 0 */
    uint64_t draining_bytes;  /* of them on their way now */
    int32_t drain_errno;      /* why the last try to drain failed, or 0 */
    uint32_t state;           /* enum fb_cache_state; 0 in a scratch buffer */
};

/* How far a commit or a copy is. */
enum fb_plan_state {
    FB_QUEUED = 1,
    FB_RUNNING = 2,
    FB_DONE = 3,      /* copied, fsynced, verified; a commit: published */
    FB_FAILED = 4,    /* a commit: not published, the old tree is what it was */
    FB_CANCELLED = 5
};

struct fb_plan_status {
    uint32_t state;           /* enum fb_plan_state */
    int32_t first_errno;      /* of the first file that failed, or 0 */
    uint64_t files_total;     /* may grow while it runs */
    uint64_t files_done;
    uint64_t files_failed;
    uint64_t bytes_total;
    uint64_t bytes_done;
    char version[17];         /* of a commit: 16 hex digits; else empty */
    char published;           /* of a commit: 1 once readers see the new tree */
    char reserved[6];
};

/* Flags. */
#define FB_KEEP_OLD 1u       /* fb_commit: the displaced tree stays, as PFSDIR.before-VERSION */
#define FB_VERIFY_MEDIUM 2u  /* read the copy back past the page cache */
#define FB_REPLACE 4u        /* fb_commit: a directory that no commit made may go, too */
#define FB_PARENTS 8u        /* fb_stage_out: make the missing directories on the way, by the umask */
#define FB_NO_CLOBBER 16u    /* fb_stage_out: leave what is there as it is; names that are taken are not copied */

/* What is known of a path. */
int fb_state(const char *path, struct fb_state *state, size_t size);

/*
 * Begins to drain what was written to a path of a cache, and returns at once, whatever the policy of its directory
 * says; fb_state tells how far it is. EINVAL in a scratch buffer, which does not drain.
 */
int fb_flush(const char *path);

/*
 * Waits until what was written to a path is on the PFS; timeout in seconds, negative for none
 * (ETIMEDOUT). A cache drains it now, of files that are still open what was written to them before; if it
 * cannot, errno says why (ESTALE: a conflict). In a scratch
 * buffer nothing goes there by itself: waits for the unfinished commits
 * and stage-outs that have the path in them, and succeeds if the newest of these ended well (EIO if
 * not, ENODATA if there is none). What was written after that began is not in it.
 */
int fb_wait(const char *path, double timeout_s);

/*
 * Begins to publish the directory `dir` as `pfsdir`, all files at once; returns its number as soon as
 * it is on record: it goes on if this process ends, and after a restart of the server.
 */
int64_t fb_commit(const char *dir, const char *pfsdir, unsigned flags);

/*
 * Begin to copy files or trees; return a number as fb_commit. A stage-out without FB_PARENTS fails with
 * ENOENT if the directory that it goes into does not exist. A flag of another call is EINVAL.
 */
int64_t fb_stage_in(const char *pfs_path, const char *path, unsigned flags);
int64_t fb_stage_out(const char *path, const char *pfs_path, unsigned flags);

/*
 * State of a commit or copy of the buffer that `path` lies in, also of one that has ended. Of one that
 * failed, fb_error() then says why.
 */
int fb_commit_status(const char *path, int64_t number, struct fb_plan_status *status, size_t size);

/* The same once it has ended; ETIMEDOUT (with the state then) if that takes longer. */
int fb_commit_wait(const char *path, int64_t number, double timeout_s,
                   struct fb_plan_status *status, size_t size);

/* Gives it up, and returns when nothing of it is left. A commit that is published stays. */
int fb_commit_cancel(const char *path, int64_t number);

/*
 * Files, beside the kernel. These calls do what those of the same name in POSIX do, on any path, with the same errno. On
 * a scratch buffer of this node whose store is a tmpfs or an image they ask the mount's process, where a call through the
 * mount is two or three turns from the kernel to that process and back; on all else they are the kernel's calls.
 * Calls about many paths (fb_..._many) need one such turn for 128 of them.
 *
 * What differs from POSIX: the umask is not applied, a mode is what the file gets; and of a descriptor that fb_open gave,
 * read, write, lseek, mmap, ftruncate and the like are as ever, but fstat and fsync are to be asked by fb_fstat and
 * fb_fsync. Locks, leases, fchmod, fchown and extended attributes by such a descriptor concern the
 * file on flash alone: use the path, or open(2). docs/PRELOAD.md says more.
 */

/* Attributes of a file, as stat(2) has them. */
struct fb_attributes {
    uint64_t ino;
    uint64_t size_bytes;
    uint64_t blocks_512;      /* allocated, in units of 512 bytes */
    int64_t atime_s, mtime_s, ctime_s, btime_s;
    uint32_t atime_ns, mtime_ns, ctime_ns, btime_ns;
    uint32_t mode;            /* type and permission bits */
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    uint32_t blksize_bytes;   /* preferred size of a call */
    uint32_t reserved;
};

#define FB_NO_FOLLOW 32u     /* fb_stat, fb_stat_many: a link itself, not what it leads to */

/* Opens a file; flags are those of open(2). Returns a descriptor of the kernel. */
int fb_open(const char *path, int flags, unsigned mode);

/* Attributes of a path, and of a descriptor. */
int fb_stat(const char *path, unsigned flags, struct fb_attributes *attributes, size_t size);
int fb_fstat(int fd, struct fb_attributes *attributes, size_t size);

/* What was written to it, and its name, survive a power cut where the buffer does. */
int fb_fsync(int fd);

#define FB_FINAL 512u        /* fb_publish: nobody writes the file any more */

/*
 * All nodes see now what was written to a file by any of them, until this call. Only files of layout log (docs/SEMANTICS.md, files
 * in logs) need it: of those, others see what was written after fsync, close, or this. With FB_FINAL nobody writes the file
 * any more, also who has it open (EPERM), until its owner lets somebody by chmod(2); readers then need not ask where its
 * data is. ETIMEDOUT: a node that has it open for writing did not answer. EBUSY: FB_FINAL on a file of another layout that a program
 * has open. EOPNOTSUPP: FB_FINAL on a cache.
 */
int fb_publish(const char *path, unsigned flags);

int fb_mkdir(const char *path, unsigned mode);
int fb_unlink(const char *path);
int fb_rename(const char *from, const char *to);

/*
 * Calls `each` for the names in a directory, but for `.` and `..`, in no order, with their attributes (of links
 * themselves), until it returns other than 0. Returns what `each` returned last, or 0; -1 is an error of this
 * call where fb_error() says so.
 */
int fb_list(const char *path,
            int (*each)(void *context, const char *name, const struct fb_attributes *attributes),
            void *context);

/*
 * Calls about many paths. Each path is done by itself and in order: one that fails stops nothing, and others may see some
 * done and some not. They return how many succeeded; errnos[i] is 0 or the error of paths[i]
 * (errnos may be NULL), and fb_error() then tells of the first. -1, EINVAL: nothing was done.
 *
 * fb_create_many makes files that must not be there, and fb_open_many opens files by the flags of open(2). fds[i] is the
 * descriptor, or -1; with fds NULL they are closed again.
 */
int64_t fb_create_many(const char *const *paths, size_t count, unsigned mode, int *fds, int *errnos);
int64_t fb_open_many(const char *const *paths, size_t count, int flags, unsigned mode, int *fds,
                     int *errnos);
/* attributes[i] is of paths[i]; size is that of one struct. */
int64_t fb_stat_many(const char *const *paths, size_t count, unsigned flags,
                     struct fb_attributes *attributes, size_t size, int *errnos);
int64_t fb_unlink_many(const char *const *paths, size_t count, int *errnos);

/*
 * Load and store: a file as memory. docs/MEMORY.md has a worked example, and examples/kv-table a whole one.
 *
 * Bytes that are stored are the file's at once: whoever opens it reads them, and they survive the death of the program.
 * What else they survive, fb_persist says. A store never meets a full file system: room for all of the mapping is taken
 * by fb_map. Of a read-only mapping of a file that others make shorter, what is gone ends the program (SIGBUS), as
 * mmap(2) has it.
 */

#define FB_MAP_ROOT 64u       /* fb_map: the file has a root, see fb_map_commit */
#define FB_MAP_READ_ONLY 128u /* fb_map: nothing can be stored; the file must be there, and keeps its size */
#define FB_PERSISTED 256u     /* fb_map_commit: the caller has persisted all that the root leads to */
#define FB_ROOT_MAX 2048      /* most bytes of a root */

/*
 * Maps a file for `size` bytes; 0: as large as it is. A file that is absent is made (mode 0666 less the umask), a smaller
 * one grows, none shrinks. Returns the address of the first byte, or NULL. A process may have 1024 mappings. A file with
 * a root has 12 KiB before its first byte that are the library's.
 */
void *fb_map(const char *path, size_t size, unsigned flags);

/* Bytes of a mapping; 0: there is none. */
size_t fb_map_size(const void *address);

/*
 * Makes stored bytes survive; returns what they survive now, FB_WRITTEN or FB_ON_FLASH (of a buffer in memory, a power cut
 * loses them all the same). Where the file lies on DAX, cache lines are written back; elsewhere the pages, by msync(2). A
 * cache drains what was persisted as it drains what was written: fb_wait(path) returns when the PFS has it.
 */
int fb_persist(const void *address, size_t length);

/*
 * Replaces the root of a mapping: persists all of its memory (unless FB_PERSISTED), and then up to FB_ROOT_MAX bytes
 * of the caller's, at once: a kill or a power cut leaves the old root or the new one. A program keeps in it where its data
 * is, does not change in place what the last root leads to, and so has the old state or the new one after a crash.
 * Returns what fb_persist does. One process at a time may commit.
 */
int fb_map_commit(const void *address, const void *root, size_t length, unsigned flags);

/* Copies the root that was committed last; returns its length. -1, ENODATA: none was. ERANGE: the room is too small. */
ptrdiff_t fb_map_root(const void *address, void *root, size_t size);

/* Unmaps; `address` is what fb_map returned. Stored bytes stay in the file. */
int fb_unmap(void *address);

/* CRC32C of a piece that continues one with checksum `crc` (0 at first), as in manifests. */
uint32_t fb_crc32c(uint32_t crc, const void *bytes, size_t size);

/* Message of this thread's last failed call; valid until its next call. Never NULL. */
const char *fb_error(void);

/* Version of the library, such as "0.1.0". */
const char *fb_version(void);

#ifdef __cplusplus
}
#endif

#endif
