/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: what is refused before it can block, short reads, names that must not escape, and the
 * atomic writer under failing writes. Linked with --wrap=write and --wrap=fsync besides the
 * allocation wraps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "fail_alloc.h"
#include "temp_dir.h"

#include <errno.h>
#include <sys/types.h>

ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);
int __real_fsync(int fd);
int __wrap_fsync(int fd);

static long writes_left = -1; /* -1: never fail */
static int write_errno, fsync_errno;

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    if (writes_left < 0)
        return __real_write(fd, data, n);
    if (writes_left-- > 0)
        return __real_write(fd, data, n > 7 ? 7 : n); /* short writes must be continued */
    writes_left = 0;
    errno = write_errno;
    return -1;
}

int __wrap_fsync(int fd)
{
    if (fsync_errno) {
        errno = fsync_errno;
        return -1;
    }
    return __real_fsync(fd);
}

static void assert_one_line(const qn_error *err, qn_status code, const char *part)
{
    assert_int_equal(err->code, code);
    assert_null(strchr(err->message, '\n'));
    if (!strstr(err->message, part))
        fail_msg("message \"%s\" lacks \"%s\"", err->message, part);
}

static void assert_read_fails(const char *path, size_t limit, qn_status code, const char *part)
{
    char *data = (char *)1;
    size_t size = 9;
    qn_error err = {0};
    assert_int_equal(qn__file_read(path, limit, &data, &size, &err), code);
    assert_null(data);
    assert_int_equal(size, 0);
    assert_one_line(&err, code, part);
}

static void test_read(void **state)
{
    (void)state;
    const char *path = temp_write("plain", "abc\0d", 5);
    char *data;
    size_t size;
    assert_int_equal(qn__file_read(path, 5, &data, &size, NULL), QN_OK);
    assert_int_equal(size, 5);
    assert_memory_equal(data, "abc\0d\0", 6);
    free(data);
    assert_read_fails(path, 4, QN_LIMIT, "plain: 5 bytes, more than the limit of 4");
    assert_read_fails(temp_path("absent"), 9, QN_NOT_FOUND, "absent: no such file");
    assert_read_fails(temp_path("plain/x"), 9, QN_NOT_FOUND, "plain/x: no such file");
    assert_read_fails(temp_mkdir("dir"), 9, QN_INVALID, "dir: is a directory");
    assert_int_equal(mkfifo(temp_path("fifo"), 0666), 0);
    assert_read_fails(temp_path("fifo"), 9, QN_INVALID, "fifo: is a FIFO");
    assert_read_fails("/dev/null", 9, QN_INVALID, "/dev/null: is a character device");
}

static void test_pread_of_a_cut_file(void **state)
{
    (void)state;
    const char *path = temp_write("cut", "0123456789", 10);
    qn__file file;
    char buffer[8];
    assert_int_equal(qn__file_open(&file, path, NULL), QN_OK);
    assert_int_equal(file.size, 10);
    assert_int_equal(qn__file_pread(&file, 4, buffer, 6, NULL), QN_OK);
    assert_memory_equal(buffer, "456789", 6);
    assert_int_equal(truncate(path, 6), 0);
    qn_error err = {0};
    assert_int_equal(qn__file_pread(&file, 4, buffer, 6, &err), QN_IO);
    assert_one_line(&err, QN_IO, "cut: the file ends at byte 6, data up to byte 10");
    err = (qn_error){0};
    assert_int_equal(qn__file_pread(&file, UINT64_MAX - 2, buffer, 6, &err), QN_LIMIT);
    assert_int_equal(qn__file_pread(&file, 99, buffer, 0, NULL), QN_OK);
    qn__file_close(&file);
    qn__file_close(&file);
}

static void assert_resolves(const char *dir, const char *name, const char *suffix)
{
    char *out;
    qn_error err = {0};
    if (qn__path_resolve(dir, name, strlen(name), &out, &err) != QN_OK)
        fail_msg("%s", err.message);
    size_t n = strlen(out), m = strlen(suffix);
    assert_true(n >= m && strcmp(out + n - m, suffix) == 0);
    free(out);
}

static void assert_refused(const char *dir, const char *name, size_t n, qn_status code,
                           const char *part)
{
    char *out;
    qn_error err = {0};
    assert_int_equal(qn__path_resolve(dir, name, n, &out, &err), code);
    assert_null(out);
    assert_one_line(&err, code, part);
}

static void test_resolve(void **state)
{
    (void)state;
    temp_mkdir("m");
    temp_mkdir("m/sub");
    temp_mkdir("mother");
    temp_write("m/a", "", 0);
    temp_write("m/sub/b", "", 0);
    temp_write("mother/c", "", 0);
    assert_int_equal(symlink("sub/b", temp_path("m/inner")), 0);
    assert_int_equal(symlink("../mother/c", temp_path("m/outer")), 0);
    assert_int_equal(symlink("/etc/passwd", temp_path("m/absolute")), 0);
    assert_int_equal(symlink("nowhere", temp_path("m/broken")), 0);
    assert_int_equal(symlink("m", temp_path("link-to-m")), 0);
    const char *m = temp_path("m");
    assert_resolves(m, "a", "/m/a");
    assert_resolves(m, "sub/b", "/m/sub/b");
    assert_resolves(m, "inner", "/m/sub/b");
    assert_resolves(temp_path("link-to-m"), "a", "/m/a");
    assert_refused(m, "outer", 5, QN_FORMAT, "leads out of the model's directory");
    assert_refused(m, "absolute", 8, QN_FORMAT, "leads out");
    assert_refused(m, "broken", 6, QN_NOT_FOUND, "is a link to a file that is missing");
    assert_refused(m, "none", 4, QN_NOT_FOUND, "m/none: no such file");
    assert_refused(m, "../m/a", 6, QN_FORMAT, "file name \"../m/a\" contains \"..\"");
    assert_refused(m, "sub/../a", 8, QN_FORMAT, "contains \"..\"");
    assert_refused(m, "sub/..", 6, QN_FORMAT, "contains \"..\"");
    assert_refused(m, "..", 2, QN_FORMAT, "contains \"..\"");
    assert_refused(m, "/etc/passwd", 11, QN_FORMAT, "is absolute");
    assert_refused(m, "a\0b", 3, QN_FORMAT, "contains NUL");
    assert_refused(m, "", 0, QN_FORMAT, "is empty");
}

static void test_resolve_in_the_hub_cache(void **state)
{
    (void)state;
    temp_mkdir("hub");
    temp_mkdir("hub/blobs");
    temp_mkdir("hub/blobs/deep");
    temp_mkdir("hub/snapshots");
    temp_mkdir("hub/snapshots/rev");
    temp_write("hub/blobs/abc", "", 0);
    temp_write("hub/blobs/deep/d", "", 0);
    temp_write("hub/secret", "", 0);
    assert_int_equal(symlink("../../blobs/abc", temp_path("hub/snapshots/rev/w")), 0);
    assert_int_equal(symlink("../../blobs/deep/d", temp_path("hub/snapshots/rev/d")), 0);
    assert_int_equal(symlink("../../secret", temp_path("hub/snapshots/rev/s")), 0);
    const char *rev = temp_path("hub/snapshots/rev");
    assert_resolves(rev, "w", "/hub/blobs/abc");
    assert_refused(rev, "s", 1, QN_FORMAT, "leads out");
    assert_refused(rev, "d", 1, QN_FORMAT, "leads out");
}

static qn_status write_pieces(const char *path, unsigned flags, size_t n, qn_error *err)
{
    qn__writer *writer;
    char piece[1000];
    memset(piece, 'x', sizeof piece);
    qn_status status = qn__writer_open(&writer, path, n * sizeof piece, flags, err);
    if (status != QN_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        status = qn__writer_write(writer, piece, sizeof piece, err);
        if (status != QN_OK) {
            qn__writer_abort(writer);
            return status;
        }
    }
    return qn__writer_commit(writer, err);
}

static void test_write(void **state)
{
    (void)state;
    const char *dir = temp_mkdir("w"), *path = temp_path("w/out");
    qn_error err = {0};
    assert_int_equal(write_pieces(path, 0, 200, &err), QN_OK);
    char *data;
    size_t size;
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &size, NULL), QN_OK);
    assert_int_equal(size, 200000);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(data[i], 'x');
    free(data);
    assert_int_equal(write_pieces(path, 0, 1, &err), QN_INVALID);
    assert_one_line(&err, QN_INVALID, "out: exists already");
    assert_int_equal(write_pieces(path, QN__WRITER_REPLACE, 1, NULL), QN_OK);
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &size, NULL), QN_OK);
    assert_int_equal(size, 1000);
    free(data);
    qn__writer *writer;
    assert_int_equal(qn__writer_open(&writer, temp_path("w/other"), 0, 0, NULL), QN_OK);
    assert_int_equal(qn__writer_write(writer, "a", 1, NULL), QN_OK);
    assert_int_equal(temp_count(dir), 2);
    qn__writer_abort(writer);
    assert_int_equal(temp_count(dir), 1);
    /* Somebody makes the file in the meantime. */
    assert_int_equal(qn__writer_open(&writer, temp_path("w/raced"), 0, 0, NULL), QN_OK);
    temp_write("w/raced", "mine", 4);
    err = (qn_error){0};
    assert_int_equal(qn__writer_commit(writer, &err), QN_IO);
    assert_int_equal(qn__file_read(temp_path("w/raced"), 9, &data, &size, NULL), QN_OK);
    assert_int_equal(size, 4);
    free(data);
    assert_int_equal(temp_count(dir), 2);
}

static void test_write_refusals(void **state)
{
    (void)state;
    temp_mkdir("r");
    const char *const bad[] = {temp_path("r"), temp_path("r/absent/x"), "/dev/null", "", "r/"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_error err = {0};
        assert_int_not_equal(write_pieces(bad[i], QN__WRITER_REPLACE, 1, &err), QN_OK);
        assert_int_not_equal(err.code, QN_OK);
    }
    assert_int_equal(temp_count(temp_path("r")), 0);
}

static void test_failing_writes(void **state)
{
    (void)state;
    const char *dir = temp_mkdir("f"), *path = temp_write("f/out", "old", 3);
    write_errno = ENOSPC;
    for (long n = 0; n < 3; n++) {
        qn_error err = {0};
        writes_left = n;
        assert_int_equal(write_pieces(path, QN__WRITER_REPLACE, 100, &err), QN_IO);
        writes_left = -1;
        char part[80];
        snprintf(part, sizeof part, "out: no space left: %ld of 100000 bytes written", 7 * n);
        assert_one_line(&err, QN_IO, part);
        assert_int_equal(temp_count(dir), 1);
    }
    /* Two short writes, then the rest at once. */
    writes_left = 1000000;
    assert_int_equal(write_pieces(temp_path("f/short"), 0, 3, NULL), QN_OK);
    writes_left = -1;
    char *data;
    size_t size;
    assert_int_equal(qn__file_read(temp_path("f/short"), 1 << 20, &data, &size, NULL), QN_OK);
    assert_int_equal(size, 3000);
    free(data);
    qn_error err = {0};
    fsync_errno = EIO;
    assert_int_equal(write_pieces(path, QN__WRITER_REPLACE, 1, &err), QN_IO);
    fsync_errno = 0;
    assert_one_line(&err, QN_IO, "out: cannot write: Input/output error");
    assert_int_equal(qn__file_read(path, 9, &data, &size, NULL), QN_OK);
    assert_memory_equal(data, "old", 3);
    free(data);
    assert_int_equal(temp_count(dir), 2);
}

static void test_failed_allocations(void **state)
{
    (void)state;
    const char *path = temp_write("alloc", "abc", 3);
    long n = 0;
    for (bool more = true; more; n++) {
        char *data = NULL;
        size_t size;
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = qn__file_read(path, 9, &data, &size, &err);
        more = fail_allocation_end();
        assert_int_equal(status, more ? QN_MEMORY : QN_OK);
        free(data);
    }
    assert_true(n > 1);
    temp_mkdir("fa");
    n = 0;
    for (bool more = true; more; n++) {
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = write_pieces(temp_path("fa/out"), QN__WRITER_REPLACE, 2, &err);
        more = fail_allocation_end();
        assert_int_equal(status, more ? QN_MEMORY : QN_OK);
        assert_int_equal(temp_count(temp_path("fa")), more ? 0 : 1);
    }
    assert_true(n > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),           cmocka_unit_test(test_pread_of_a_cut_file),
        cmocka_unit_test(test_resolve),        cmocka_unit_test(test_resolve_in_the_hub_cache),
        cmocka_unit_test(test_write),          cmocka_unit_test(test_write_refusals),
        cmocka_unit_test(test_failing_writes), cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
