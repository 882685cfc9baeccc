/*
 * libforebay: what a program may ask of the buffer that its files lie in. Link with -lforebay.
 *
 * Every call finds the buffer by the path it is given, asks that buffer's server and returns; nothing
 * is kept between calls. Calls block, have no threads and no runtime, may be made from any thread,
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

/* Begin to copy files or trees; return a number as fb_commit. */
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
