/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the cache folder is, and whose it must be.
 */
#include "test.h"

#include "base/cache_folder.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], made[100];

static void expect(const char *name, qn_status status, const char *path)
{
    qn_error err = {0};
    char *got = NULL;
    assert_int_equal(qn__cache_folder(name, &got, &err), status);
    assert_int_equal(got != NULL, status == QN_OK);
    if (path)
        assert_string_equal(got, path);
    free(got);
}

static void test_places(void **state)
{
    (void)state;
    char path[120];
    struct stat info;
    setenv("XDG_CACHE_HOME", folder, 1);
    expect(NULL, QN_OK, made);
    assert_int_equal(stat(made, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    snprintf(path, sizeof path, "%s/of", made);
    expect("of", QN_OK, path);
    assert_int_equal(rmdir(path), 0);
    setenv("XDG_CACHE_HOME", "relative", 1); /* counts as none */
    setenv("HOME", folder, 1);
    snprintf(path, sizeof path, "%s/.cache/quern", folder);
    expect(NULL, QN_OK, path);
    assert_int_equal(rmdir(path), 0);
    *strrchr(path, '/') = 0;
    assert_int_equal(rmdir(path), 0);
    unsetenv("HOME");
    expect(NULL, QN_NOT_FOUND, NULL);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    expect(NULL, QN_IO, NULL);
}

/* A folder that others write to, or a link to one, is not used. */
static void test_others(void **state)
{
    (void)state;
    char other[100];
    setenv("XDG_CACHE_HOME", folder, 1);
    assert_int_equal(chmod(made, 0720), 0);
    expect(NULL, QN_INVALID, NULL);
    assert_int_equal(chmod(made, 0702), 0);
    expect(NULL, QN_INVALID, NULL);
    assert_int_equal(chmod(made, 0755), 0);
    expect(NULL, QN_OK, made);
    snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(rename(made, other), 0);
    assert_int_equal(symlink(other, made), 0);
    expect(NULL, QN_INVALID, NULL);
    assert_int_equal(unlink(made), 0);
    assert_int_equal(rmdir(other), 0);
}

int main(void)
{
    strcpy(folder, "/tmp/quern-cache-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(made, sizeof made, "%s/quern", folder);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_others)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
