/* SPDX-License-Identifier: Apache-2.0
 *
 * quern convert: a model into another format or type; quern fuse: with what adapters add. The
 * library does it; here are the options and the progress.
 */
#include "base/error.h"
#include "cli/commands.h"
#include "cli/shared.h"
#include "quern/convert.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool show_conversion(void *user, uint64_t done, uint64_t total)
{
    int *shown = user;
    int percent = total ? (int)(100 * done / total) : 100;
    if (percent != *shown && isatty(STDERR_FILENO))
        fprintf(stderr, "\rconverting %3d %%%s", *shown = percent,
                percent == 100 ? "\r\033[K" : "");
    return !atomic_load(&interrupted);
}

static void warn_line(void *user, qn_log_level level, const char *line)
{
    (void)user;
    if (level >= QN_LOG_WARN)
        fprintf(stderr, "quern: warning: %s\n", line);
}

static int wrong(const char *what)
{
    fprintf(stderr, "quern convert: %s\n", what);
    return 2;
}

static bool has_digit(const char *list, int64_t n)
{
    char text[24];
    snprintf(text, sizeof text, " %lld ", (long long)n);
    return n < 0 || strstr(list, text);
}

static int check_arguments(const arguments *a)
{
    if (!a->output)
        return wrong("say with -o what to write: a name that ends in .gguf, or a directory's");
    bool mxfp4 = a->mode && !strcmp(a->mode, "mxfp4");
    if (a->mode && !mxfp4 && strcmp(a->mode, "affine") != 0)
        return wrong("--mode: it is affine or mxfp4");
    if (a->mode && !mxfp4 && a->bits < 0)
        return wrong("--mode affine needs --bits");
    if (!has_digit(" 2 3 4 5 6 8 ", a->bits))
        return wrong("--bits: it is 2, 3, 4, 5, 6 or 8");
    if (!has_digit(" 32 64 128 ", a->group_size))
        return wrong("--group-size: it is 32, 64 or 128");
    return 0;
}

int command_convert(arguments *a)
{
    qn_error err = {0};
    qn_device *device = NULL;
    char path[PATH_ROOM];
    int shown = -1, wrongly = check_arguments(a);
    qn_device_options device_options = {
        .size = sizeof device_options, .threads = 1, .log = warn_line};
    qn_adapter adapters[MOST_WORDS] = {{0}};
    for (size_t i = 0; i < a->adapters.n; i++)
        adapters[i].path = a->adapters.word[i];
    qn_convert_options options = {.size = sizeof options,
                                  .progress = show_conversion,
                                  .progress_user = &shown,
                                  .type = a->type,
                                  .overrides = a->overrides,
                                  .n_overrides = a->n_overrides,
                                  .dtype = a->dtype,
                                  .bits = a->bits > 0 ? a->bits : 0,
                                  .group_size = a->group_size > 0 ? a->group_size : 0,
                                  .keep_head = a->keep_head,
                                  .mode = a->mode,
                                  .replace = a->force,
                                  .packed = a->packed,
                                  .shard_bytes = a->shard_size > 0 ? (uint64_t)a->shard_size : 0,
                                  .threads = a->threads > 0 ? (int)a->threads : 0,
                                  .adapters = adapters,
                                  .n_adapters = a->adapters.n};
    if (wrongly)
        return wrongly;
    catch_interrupts(true);
    if (locate_model(a->model, path, &err) == QN_OK &&
        qn_device_open(&device, "cpu", &device_options, &err) == QN_OK)
        qn_convert(device, path, a->output, &options, &err);
    qn_device_close(device);
    if (err.code != QN_OK && shown >= 0 && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    return err.code == QN_OK ? 0 : failed(&err);
}

int command_fuse(arguments *a)
{
    if (!a->adapters.n) {
        fprintf(stderr, "quern fuse: --adapter says which adapter is fused\n");
        return 2;
    }
    return command_convert(a);
}
