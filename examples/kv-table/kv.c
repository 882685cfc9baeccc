/*
 * A key-value table in a mapped file, which kills and power cuts leave as it was after some put.
 *
 * Records are appended to the memory and never changed; the root says up to where they count. So a put is: store the
 * record behind the last one, persist it, commit the new end. Whatever comes in between, the old end stands. Of a key the
 * last record counts; a value of -1 bytes is a removed key.
 *
 *   kv FILE put KEY VALUE       kv FILE get KEY       kv FILE remove KEY       kv FILE list
 *   kv FILE fill FIRST COUNT    puts the keys FIRST, FIRST + 1, ... and tells each one that is safe
 *
 * Build: cc -o kv kv.c -lforebay
 */
#include <errno.h>
#include <forebay.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_BYTES (8u << 20)
#define REMOVED UINT32_MAX
/* A record takes at least 16 bytes: half of the places stay free. */
#define PLACES (1u << 20)

struct root {
    uint64_t end;   /* where the next record goes */
    uint64_t count; /* records before it */
};

struct record {
    uint32_t key_bytes;
    uint32_t value_bytes; /* or REMOVED */
};

static char *memory;
static struct root root;
/* Where the last record of each key is, + 1: made anew by each start, from what the root leads to. */
static uint32_t places[PLACES];

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "kv: %s: %s\n", what, fb_error());
    exit(1);
}

static size_t space(const struct record *record)
{
    size_t value = record->value_bytes == REMOVED ? 0 : record->value_bytes;
    return (sizeof *record + record->key_bytes + value + 7) / 8 * 8;
}

static const struct record *record_at(uint64_t at)
{
    return (const struct record *)(memory + at);
}

static const char *key_of(const struct record *record)
{
    return (const char *)(record + 1);
}

/* The place of a key: that of its last record, or a free one. */
static uint32_t *place_of(const char *key, size_t key_bytes)
{
    uint32_t hash = fb_crc32c(0, key, key_bytes);
    for (uint32_t *place;; hash++) {
        place = &places[hash % PLACES];
        if (!*place)
            return place;
        const struct record *found = record_at(*place - 1);
        if (found->key_bytes == key_bytes && !memcmp(key_of(found), key, key_bytes))
            return place;
    }
}

static void note(uint64_t at)
{
    *place_of(key_of(record_at(at)), record_at(at)->key_bytes) = (uint32_t)at + 1;
}

static void open_table(const char *path)
{
    memory = fb_map(path, SIZE_BYTES, FB_MAP_ROOT);
    if (!memory)
        fail("open the table");
    if (fb_map_root(memory, &root, sizeof root) < 0 && errno != ENODATA)
        fail("read the root");
    for (uint64_t at = 0; at < root.end; at += space(record_at(at)))
        note(at);
}

/* The last record of a key, or NULL. */
static const struct record *find(const char *key, size_t key_bytes)
{
    uint32_t place = *place_of(key, key_bytes);
    const struct record *found = place ? record_at(place - 1) : NULL;
    return found && found->value_bytes != REMOVED ? found : NULL;
}

/* Returns the grade of safety that the put has reached. */
static int append(const char *key, const char *value)
{
    struct record record = { (uint32_t)strlen(key), value ? (uint32_t)strlen(value) : REMOVED };
    char *at = memory + root.end;
    int grade;

    if (root.end + space(&record) > SIZE_BYTES) {
        fprintf(stderr, "kv: the table is full\n");
        exit(1);
    }
    memcpy(at, &record, sizeof record);
    memcpy(at + sizeof record, key, record.key_bytes);
    if (value)
        memcpy(at + sizeof record + record.key_bytes, value, record.value_bytes);
    if (fb_persist(at, space(&record)) < 0)
        fail("persist the record");
    note(root.end);
    root.end += space(&record);
    root.count += 1;
    grade = fb_map_commit(memory, &root, sizeof root, FB_PERSISTED);
    if (grade < 0)
        fail("commit");
    return grade;
}

static void print_value(const struct record *record)
{
    printf("%.*s\n", (int)record->value_bytes, key_of(record) + record->key_bytes);
}

static void list(void)
{
    for (uint64_t at = 0; at < root.end; at += space(record_at(at))) {
        const struct record *record = record_at(at);
        if (find(key_of(record), record->key_bytes) == record) {
            printf("%.*s ", (int)record->key_bytes, key_of(record));
            print_value(record);
        }
    }
}

static void fill(uint64_t first, uint64_t count)
{
    for (uint64_t n = first; n < first + count; n++) {
        char key[24], value[64];
        snprintf(key, sizeof key, "%" PRIu64, n);
        snprintf(value, sizeof value, "value-of-%" PRIu64 "-%0*d", n, (int)(n % 30) + 1, 0);
        printf("%s %s\n", key, append(key, value) == FB_ON_FLASH ? "on flash" : "written");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const char *command = argc > 2 ? argv[2] : "";
    if (!strcmp(command, "put") && argc == 5) {
        open_table(argv[1]);
        append(argv[3], argv[4]);
    } else if (!strcmp(command, "remove") && argc == 4) {
        open_table(argv[1]);
        append(argv[3], NULL);
    } else if (!strcmp(command, "get") && argc == 4) {
        const struct record *record;
        open_table(argv[1]);
        record = find(argv[3], strlen(argv[3]));
        if (!record) {
            fprintf(stderr, "kv: there is no %s\n", argv[3]);
            return 1;
        }
        print_value(record);
    } else if (!strcmp(command, "list") && argc == 3) {
        open_table(argv[1]);
        list();
    } else if (!strcmp(command, "fill") && argc == 5) {
        open_table(argv[1]);
        fill(strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    } else {
        fprintf(stderr, "kv FILE put KEY VALUE | get KEY | remove KEY | list | fill FIRST COUNT\n");
        return 2;
    }
    fb_unmap(memory);
    return 0;
}
