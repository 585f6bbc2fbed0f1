/* SPDX-License-Identifier: Apache-2.0
 *
 * Naming what is not a model's file; see recognize.h.
 */
#include "base/recognize.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define GGUF_INSTEAD                                                                               \
    "is not supported; take a little-endian GGUF file of version 2 or 3, or the model's "          \
    "directory "                                                                                   \
    "of safetensors files, as the Hugging Face hub has it"
#define HUB_MESSAGE                                                                                \
    "a message of the Hugging Face hub instead of the file; the model may want a login (hf auth "  \
    "login)"

typedef struct signature {
    const char *bytes;
    size_t n;
    const char *what;
} signature;

#define SIGNATURE(bytes, what)                                                                     \
    {                                                                                              \
        bytes, sizeof(bytes) - 1, what                                                             \
    }

static const signature signatures[] = {
    SIGNATURE(
        "version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the file itself; `git lfs pull` or `hf download` fetches that"),
    SIGNATURE("GGUF", "a GGUF file in the place of another; give its own path as the model's"),
    SIGNATURE("FUGG", "a big-endian GGUF file, which " GGUF_INSTEAD),
    SIGNATURE("lmgg", "a GGML file of llama.cpp's early days, which " GGUF_INSTEAD),
    SIGNATURE("fmgg", "a GGML file of llama.cpp's early days, which " GGUF_INSTEAD),
    SIGNATURE("tjgg", "a GGML file of llama.cpp's early days, which " GGUF_INSTEAD),
    SIGNATURE("\x89HDF\r\n\x1a\n",
              "an HDF5 file (Keras, TensorFlow), which is not supported; safetensors is"),
    SIGNATURE("<!doctype", "a web page instead of the file; the download may have wanted a login"),
    SIGNATURE("<html", "a web page instead of the file; the download may have wanted a login"),
    SIGNATURE("Entry not found", HUB_MESSAGE),
    SIGNATURE("Invalid username or password", HUB_MESSAGE),
    SIGNATURE("Access to model", HUB_MESSAGE),
    SIGNATURE("\x1f\x8b", "compressed by gzip; unpack it first"),
    SIGNATURE("\x28\xb5\x2f\xfd", "compressed by zstd; unpack it first"),
    SIGNATURE("\xfd"
              "7zXZ",
              "compressed by xz; unpack it first"),
    SIGNATURE("BZh", "compressed by bzip2; unpack it first"),
};

static bool all_zero(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

const char *qn__recognize_bytes(const char *first, size_t n)
{
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        const signature *s = &signatures[i];
        bool page = s->bytes[0] == '<'; /* which writes its tags in any case */
        if (n >= s->n &&
            !(page ? strncasecmp(first, s->bytes, s->n) : memcmp(first, s->bytes, s->n)))
            return s->what;
    }
    if (n >= 64 && all_zero(first, n < QN__RECOGNIZE_BYTES ? n : QN__RECOGNIZE_BYTES))
        return "zeros where its beginning should be: a download that was interrupted; fetch it "
               "again";
    return NULL;
}

/* ---- directories ----------------------------------------------------------------------------- */

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && !strcasecmp(name + n - m, suffix);
}

static const char *of_name(const char *name)
{
    static const char *const partial[] = {".incomplete", ".part",  ".partial",
                                          ".crdownload", ".aria2", ".download"};
    for (size_t i = 0; i < sizeof partial / sizeof *partial; i++)
        if (ends_in(name, partial[i]))
            return "a download that was interrupted; fetch it again";
    if (ends_in(name, ".gguf"))
        return "a GGUF file; give its own path as the model's";
    if (ends_in(name, ".onnx") || ends_in(name, ".h5") || ends_in(name, ".msgpack") ||
        ends_in(name, ".tflite"))
        return "of a format that is not supported; safetensors is";
    return NULL;
}

/* The first of its files, by name, of which there is something to say. */
static void look(const char *directory, char *text, size_t room)
{
    char best[256] = "";
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d));)
        if (of_name(e->d_name) && (!best[0] || strcmp(e->d_name, best) < 0))
            snprintf(best, sizeof best, "%s", e->d_name);
    if (d)
        closedir(d);
    if (best[0])
        snprintf(text, room, "%.80s is %s", best, of_name(best));
}

void qn__recognize_directory(const char *directory, char *text, size_t room)
{
    /* where `hf download` keeps what it has not finished: with --local-dir, and in its cache */
    static const char *const places[] = {".", ".cache/huggingface/download", "../../blobs"};
    char path[4400];
    text[0] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places && !text[0]; i++)
        if (snprintf(path, sizeof path, "%s/%s", directory, places[i]) < (int)sizeof path)
            look(path, text, room);
}
