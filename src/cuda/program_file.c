/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled chains on the disk, by their text: a program that was compiled once on this machine is
 * read the next time, and the compiler is not even loaded. What cannot be kept is compiled again.
 *
 * A file is a head, the text, the code. It counts if all is as it was written.
 */
#include "base/cache_folder.h"
#include "base/file.h"
#include "base/hash.h"
#include "cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct head {
    char magic[8];
    uint64_t arch, text, code, hash; /* sizes; the hash is of text and code */
} head;

enum { LARGEST_PROGRAM = 16 << 20 };
static const char magic[8] = "qncuda1";

static char *path_of(const char *text, size_t n, int arch)
{
    char *folder, *path = NULL, name[48];
    qn_error err = {0};
    if (qn__cache_folder("cuda", &folder, &err) != QN_OK)
        return NULL;
    snprintf(name, sizeof name, "sm_%d-%016llx", arch,
             (unsigned long long)qn__hash_bytes(text, n, 0));
    path = qn__path_join(folder, name);
    free(folder);
    return path;
}

/* The code in a file of `size` bytes; NULL: it is not this program's, or not whole. */
static char *code_in(const char *file, size_t size, const char *text, size_t n, int arch)
{
    head h;
    if (size < sizeof h)
        return NULL;
    memcpy(&h, file, sizeof h);
    const char *body = file + sizeof h;
    size_t left = size - sizeof h;
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.arch != (uint64_t)arch || h.text != n ||
        n > left || h.code != left - n || !h.code || memcmp(body, text, n) != 0 ||
        h.hash != qn__hash_bytes(body, left, 0))
        return NULL;
    char *code = malloc(h.code);
    if (code)
        memcpy(code, body + n, h.code);
    return code;
}

char *qn__cuda_program_read(const char *text, size_t n, int arch)
{
    char *path = path_of(text, n, arch), *file = NULL, *code = NULL;
    size_t size = 0;
    qn_error err = {0};
    if (path && qn__file_read(path, LARGEST_PROGRAM, &file, &size, &err) == QN_OK)
        code = code_in(file, size, text, n, arch);
    free(file);
    free(path);
    return code;
}

void qn__cuda_program_write(const char *text, size_t n, int arch, const char *code, size_t size)
{
    head h = {.arch = (uint64_t)arch, .text = n, .code = size};
    size_t all = sizeof h + n + size;
    char *path = path_of(text, n, arch), *file = malloc(all);
    qn_error err = {0};
    if (path && file) {
        memcpy(file + sizeof h, text, n);
        memcpy(file + sizeof h + n, code, size);
        memcpy(h.magic, magic, sizeof magic);
        h.hash = qn__hash_bytes(file + sizeof h, n + size, 0);
        memcpy(file, &h, sizeof h);
        qn__file_write(path, file, all, QN__WRITER_REPLACE, &err);
    }
    free(file);
    free(path);
}
