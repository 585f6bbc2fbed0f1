/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled programs that are kept on the disk: what was written comes back, and nothing else does.
 */
#include "test.h"

#include "cuda/cuda.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static const char text[] = "a program's text", code[] = "its code, with a \0 in it";

static char *file_name(void)
{
    static char name[200];
    char command[200];
    snprintf(command, sizeof command, "ls -d %s/quern/cuda/*", folder);
    FILE *in = popen(command, "r");
    assert_non_null(fgets(name, sizeof name, in));
    pclose(in);
    name[strcspn(name, "\n")] = 0;
    return name;
}

static void keep(void)
{
    qn__cuda_program_write(text, strlen(text), 90, code, sizeof code);
}

static void expect(const char *of, int arch, bool there)
{
    char *read = qn__cuda_program_read(of, strlen(of), arch);
    assert_int_equal(read != NULL, there);
    if (there)
        assert_memory_equal(read, code, sizeof code);
    free(read);
}

/* Begins with a file and ends with none. */
static void test_kept(void **state)
{
    (void)state;
    expect(text, 90, false);
    keep();
    expect(text, 90, true);
    expect(text, 80, false);
    expect("another program", 90, false);
    assert_int_equal(unlink(file_name()), 0);
}

/* Every byte counts, and so does each that is missing or too many. */
static void test_damaged(void **state)
{
    (void)state;
    keep();
    const char *name = file_name();
    struct stat info;
    assert_int_equal(stat(name, &info), 0);
    for (long at = 0; at < (long)info.st_size; at++) {
        FILE *f = fopen(name, "r+b");
        fseek(f, at, SEEK_SET);
        int byte = getc(f);
        fseek(f, at, SEEK_SET);
        putc(byte ^ 64, f);
        fclose(f);
        expect(text, 90, false);
        keep();
    }
    for (off_t n = 0; n < info.st_size; n++) {
        assert_int_equal(truncate(name, n), 0);
        expect(text, 90, false);
    }
    keep();
    FILE *f = fopen(name, "ab");
    putc('x', f);
    fclose(f);
    expect(text, 90, false);
    keep();
    expect(text, 90, true);
    assert_int_equal(unlink(name), 0);
}

/* Code is not taken from where others may write; nor is it an error that there is nowhere to keep
 * it. */
static void test_folder(void **state)
{
    (void)state;
    char path[100];
    keep();
    snprintf(path, sizeof path, "%s/quern/cuda", folder);
    assert_int_equal(chmod(path, 0777), 0);
    expect(text, 90, false);
    assert_int_equal(chmod(path, 0700), 0);
    expect(text, 90, true);
    assert_int_equal(unlink(file_name()), 0);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    keep();
    expect(text, 90, false);
    setenv("XDG_CACHE_HOME", folder, 1);
}

int main(void)
{
    strcpy(folder, "/tmp/quern-programs-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    setenv("XDG_CACHE_HOME", folder, 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept), cmocka_unit_test(test_damaged),
                                       cmocka_unit_test(test_folder)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char path[100];
    snprintf(path, sizeof path, "%s/quern/cuda", folder);
    rmdir(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    rmdir(folder);
    return failed;
}
