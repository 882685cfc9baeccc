/*
 * Publishes a directory of a buffer on the parallel file system, all files at once, with libforebay.
 *
 * usage: publish DIR PFSDIR
 *
 * DIR is a directory of a mounted scratch buffer. The program prints how safe each of its files is now, begins a commit, waits for
 * it with progress, and says what became of it.
 */
#include <dirent.h>
#include <errno.h>
#include <forebay.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what) {
    /* errno has the kind of the error, fb_error() the whole sentence. */
    fprintf(stderr, "publish: %s: %s\n", what, fb_error());
    return 1;
}

static const char *words(uint32_t grade) {
    switch (grade) {
    case FB_LOST: return "lost";
    case FB_WRITTEN: return "survives the death of the program and of the mount";
    case FB_ON_FLASH: return "survives a power cut";
    case FB_ON_PFS: return "is on the PFS";
    default: return "unknown";
    }
}

static int show_files(const char *dir) {
    DIR *entries = opendir(dir);
    if (!entries) {
        fprintf(stderr, "publish: %s: %s\n", dir, strerror(errno));
        return 1;
    }
    for (struct dirent *entry; (entry = readdir(entries));) {
        char path[8192];
        struct fb_state state;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (fb_state(path, &state, sizeof state) < 0) {
            closedir(entries);
            return fail(path);
        }
        printf("%s: %" PRIu64 " bytes, %s\n", entry->d_name, state.size_bytes, words(state.grade));
    }
    closedir(entries);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: publish DIR PFSDIR\n");
        return 2;
    }
    const char *dir = argv[1], *place = argv[2];
    if (show_files(dir)) return 1;

    /* From here on the commit is on record: it goes on if this program ends, and over a restart of the server. */
    int64_t commit = fb_commit(dir, place, 0);
    if (commit < 0) return fail("begin the commit");

    struct fb_plan_status status;
    while (fb_commit_wait(dir, commit, 1, &status, sizeof status) < 0) {
        if (errno != ETIMEDOUT) return fail("wait for the commit");
        printf("%" PRIu64 " of %" PRIu64 " bytes\n", status.bytes_done, status.bytes_total);
    }
    if (status.state != FB_DONE) return fail("the commit failed; the old tree is what it was");
    printf("published %" PRIu64 " files, %" PRIu64 " bytes, as version %s\n", status.files_done, status.bytes_done,
           status.version);
    return 0;
}
