/* What a program written for DataWarp does: DW-DIRECTORY PFS-DIRECTORY [cache]. Ends with the line of the first that is wrong. */
#include <datawarp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MUST(what)                                                      \
    do {                                                                \
        if (!(what)) {                                                  \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, fb_error()); \
            exit(1);                                                    \
        }                                                               \
    } while (0)

const char *fb_error(void);

static const char *dw, *pfs;
static char paths[8][4096];

static const char *in(const char *dir, const char *name, int at) {
    snprintf(paths[at], sizeof paths[at], "%s/%s", dir, name);
    return paths[at];
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    MUST(file != NULL);
    MUST(fputs(text, file) >= 0);
    MUST(fclose(file) == 0);
}

static int holds(const char *path, const char *text) {
    char found[64] = "";
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    size_t size = fread(found, 1, sizeof found - 1, file);
    found[size] = 0;
    fclose(file);
    return strcmp(found, text) == 0;
}

static int counts(const char *path, int complete, int pending, int deferred, int failed) {
    int c = -1, p = -1, d = -1, f = -1;
    MUST(dw_query_file_stage(path, &c, &p, &d, &f) == 0);
    return c == complete && p == pending && d == deferred && f == failed;
}

static void now(void) {
    const char *a = in(dw, "a", 0), *out = in(pfs, "a", 1);
    put(a, "alpha");
    MUST(dw_wait_file_stage(a) == -EINVAL);
    MUST(dw_terminate_file_stage(a) == -EINVAL);
    MUST(dw_query_file_stage(a, NULL, NULL, NULL, NULL) == -EINVAL);
    MUST(dw_query_file_stage(in(dw, "none", 2), NULL, NULL, NULL, NULL) == -ENOENT);
    MUST(dw_stage_file_out(a, out, DW_STAGE_IMMEDIATE) == 0);
    MUST(dw_wait_file_stage(a) == 0);
    MUST(counts(a, 1, 0, 0, 0));
    MUST(holds(out, "alpha"));
    MUST(dw_stage_file_in(in(dw, "back", 2), out) == 0);
    MUST(dw_wait_file_stage(in(dw, "back", 2)) == 0);
    MUST(holds(in(dw, "back", 2), "alpha"));
}

static void later(void) {
    const char *late = in(dw, "late", 0);
    put(late, "one");
    MUST(dw_stage_file_out(late, in(pfs, "late", 1), DW_STAGE_AT_JOB_END) == 0);
    MUST(counts(late, 0, 0, 1, 0));
    MUST(dw_wait_file_stage(late) == -EINVAL);
    MUST(access(in(pfs, "late", 1), F_OK) != 0);
    put(late, "two");
    const char *never = in(dw, "never", 0);
    put(never, "never");
    MUST(dw_stage_file_out(never, in(pfs, "never", 1), DW_REVOKE_STAGE_AT_JOB_END) == -EINVAL);
    MUST(dw_stage_file_out(never, in(pfs, "never", 1), DW_STAGE_AT_JOB_END) == 0);
    MUST(dw_stage_file_out(never, in(pfs, "never", 1), DW_REVOKE_STAGE_AT_JOB_END) == 0);
    MUST(dw_terminate_file_stage(never) == -EINVAL);
    const char *now_after_all = in(dw, "now", 0);
    put(now_after_all, "now");
    MUST(dw_stage_file_out(now_after_all, in(pfs, "now", 1), DW_STAGE_AT_JOB_END) == 0);
    MUST(dw_stage_file_out(now_after_all, in(pfs, "now", 1), DW_ACTIVATE_DEFERRED_STAGE) == 0);
    MUST(dw_wait_file_stage(now_after_all) == 0);
    MUST(holds(in(pfs, "now", 1), "now"));
    MUST(dw_stage_file_out(now_after_all, in(pfs, "now", 1), (enum dw_stage_type)9) == -EINVAL);
}

static void trees_and_lists(void) {
    int complete = 0, pending = -1, deferred = -1, failed = -1;
    const char *tree = in(dw, "tree", 0);
    MUST(mkdir(tree, 0755) == 0);
    put(in(dw, "tree/x", 1), "x");
    put(in(dw, "tree/y", 2), "y");
    MUST(dw_query_directory_stage(tree, &complete, &pending, &deferred, &failed) == 0);
    MUST(complete == 0 && pending == 0 && deferred == 0 && failed == 0);
    MUST(dw_stage_directory_out(tree, in(pfs, "tree", 3), DW_STAGE_IMMEDIATE) == 0);
    MUST(dw_wait_directory_stage(tree) == 0);
    MUST(dw_query_directory_stage(tree, &complete, &pending, &deferred, &failed) == 0);
    MUST(complete >= 2 && pending == 0 && deferred == 0 && failed == 0);
    MUST(holds(in(pfs, "tree/y", 3), "y"));
    /* A file of a tree has the tree's stage. */
    MUST(counts(in(dw, "tree/x", 1), 1, 0, 0, 0));
    MUST(dw_stage_directory_in(in(dw, "again", 4), in(pfs, "tree", 3)) == 0);
    MUST(dw_wait_directory_stage(in(dw, "again", 4)) == 0);
    MUST(holds(in(dw, "again/x", 5), "x"));
    const char *all[] = {in(dw, "again/x", 5), in(dw, "again/y", 6), NULL};
    MUST(mkdir(in(pfs, "list", 3), 0755) == 0);
    MUST(dw_stage_list_out(all, in(pfs, "list", 3), DW_STAGE_IMMEDIATE) == 0);
    MUST(dw_wait_list_stage(all) == 0);
    MUST(dw_query_list_stage(all, &complete, &pending, &deferred, &failed) == 0);
    MUST(complete == 2 && failed == 0);
    MUST(holds(in(pfs, "list/x", 3), "x"));
    const char *back[] = {in(pfs, "list/x", 5), in(pfs, "list/y", 6), NULL};
    MUST(mkdir(in(dw, "listed", 3), 0755) == 0);
    MUST(dw_stage_list_in(in(dw, "listed", 3), back) == 0);
    MUST(dw_wait_file_stage(in(dw, "listed/y", 4)) == 0);
    MUST(dw_wait_directory_stage(in(dw, "listed", 3)) == 0);
    MUST(holds(in(dw, "listed/y", 4), "y"));
}

static void failures(void) {
    const char *bad = in(dw, "bad", 0);
    char path[4096], small[2];
    int why = 0;
    dw_failed_stage_t *handle = NULL;
    put(bad, "bad");
    MUST(dw_open_failed_stage(dw, &handle) == 0);
    MUST(dw_read_failed_stage(handle, path, sizeof path, &why) == 0);
    MUST(dw_close_failed_stage(handle) == 0);
    int begun = dw_stage_file_out(bad, in(pfs, "no/such/directory/bad", 1), DW_STAGE_IMMEDIATE);
    MUST(begun == 0);
    MUST(dw_wait_file_stage(bad) == -ENOENT);
    MUST(counts(bad, 0, 0, 0, 1));
    MUST(dw_open_failed_stage(dw, &handle) == 0);
    MUST(dw_read_failed_stage(handle, small, sizeof small, &why) == -ENAMETOOLONG);
    MUST(dw_read_failed_stage(handle, path, sizeof path, &why) == (int)strlen(path));
    MUST(why == -ENOENT && strcmp(path + strlen(path) - 4, "/bad") == 0 && access(path, F_OK) == 0);
    MUST(dw_read_failed_stage(handle, path, sizeof path, &why) == 0);
    MUST(dw_close_failed_stage(handle) == 0);
    MUST(dw_close_failed_stage(NULL) == -EINVAL);
    MUST(dw_stage_file_out(bad, in(pfs, "bad", 1), DW_STAGE_IMMEDIATE) == 0);
    MUST(dw_wait_file_stage(bad) == 0);
    MUST(dw_open_failed_stage(dw, &handle) == 0);
    MUST(dw_read_failed_stage(handle, path, sizeof path, &why) == 0);
    MUST(dw_close_failed_stage(handle) == 0);
}

static void layouts(void) {
    int size = 0, width = 0, first = -1;
    int fd = open(in(dw, "striped", 0), O_RDWR | O_CREAT, 0644);
    MUST(fd >= 0);
    MUST(dw_get_stripe_configuration(fd, &size, &width, &first) == 0);
    MUST(size > 0 && width >= 1 && first >= 0);
    MUST(close(fd) == 0);
    MUST(dw_get_stripe_configuration(-1, &size, &width, &first) == -EBADF);
    fd = open("/dev/null", O_RDONLY);
    MUST(fd >= 0 && dw_get_stripe_configuration(fd, &size, &width, &first) < 0);
    MUST(dw_set_stripe_configuration(fd, 1 << 20, 1) < 0);
    MUST(close(fd) == 0);
    /* A directory gives its layout to new files. */
    MUST(mkdir(in(dw, "wide", 0), 0755) == 0);
    fd = open(in(dw, "wide", 0), O_RDONLY | O_DIRECTORY);
    MUST(fd >= 0 && dw_set_stripe_configuration(fd, 2 << 20, 1) == 0);
    MUST(dw_get_stripe_configuration(fd, &size, &width, &first) == 0);
    MUST(size == 2 << 20 && width == 1);
    MUST(close(fd) == 0);
    char *where = dw_get_mds_path(dw, 17);
    MUST(where != NULL && strcmp(where, dw) == 0);
    free(where);
    MUST(dw_set_stage_concurrency(dw, 4) == 0);
    MUST(dw_set_stage_concurrency(dw, 0) == -EINVAL);
    MUST(dw_stage_file_out("/dev/null", "/tmp/x", DW_STAGE_IMMEDIATE) == -ENOTTY);
    MUST(dw_stage_file_out(NULL, "/tmp/x", DW_STAGE_IMMEDIATE) == -EINVAL);
    MUST(dw_stage_list_out(NULL, "/tmp/x", DW_STAGE_IMMEDIATE) == -EINVAL);
}

static void accounts(void) {
    int why = 1;
    char *text = dw_get_accounting_data_json(dw, &why);
    MUST(text != NULL && why == 0);
    MUST(strstr(text, "\"realm\"") && strstr(text, "\"fragments\"") && strstr(text, "\"namespaces\""));
    MUST(strstr(text, "\"server_count\":1") && strstr(text, "\"bytes_written\""));
    /* Something was staged, and files were made. */
    MUST(strstr(text, "\"stage_bytes_read\":0,") == NULL);
    free(text);
    MUST(dw_get_accounting_data_json("/dev/null", &why) == NULL && why == -ENOTTY);
    MUST(dw_get_accounting_data_json("/dev/null", NULL) == NULL);
}

/* In a cache: DW-DIRECTORY PFS-DIRECTORY is one directory seen from both sides. */
static int cached(void) {
    int fd = open(in(dw, "synced", 0), O_WRONLY | O_CREAT, 0644);
    MUST(fd >= 0 && write(fd, "synced", 6) == 6);
    MUST(dw_wait_sync_complete(fd) == 0);
    MUST(holds(in(pfs, "synced", 1), "synced"));
    MUST(close(fd) == 0);
    MUST(dw_wait_sync_complete(fd) == -EBADF);
    puts("all as it should be");
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) return 2;
    dw = argv[1];
    pfs = argv[2];
    if (argc == 4) return cached();
    layouts();
    now();
    later();
    trees_and_lists();
    failures();
    accounts();
    puts("all as it should be");
    return 0;
}
