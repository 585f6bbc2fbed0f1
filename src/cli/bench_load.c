/* SPDX-License-Identifier: Apache-2.0
 *
 * quern bench --load: how long a model takes from its files to the device, beside the rate of
 * copies to the device. Files that were just read or written are in the system's page cache: that
 * is what is timed, not a disk. For random weights of a --shape a file is written first, in a
 * folder of $TMPDIR that goes away again.
 */
#include "base/buffers.h"
#include "base/error.h"
#include "cli/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a file of random weights ---------------------------------------------------------------- */

enum { PIECE_VALUES = 1 << 18 };

typedef struct written {
    char folder[PATH_ROOM / 2], weights[PATH_ROOM], config[PATH_ROOM];
} written;

static void remove_written(const written *w)
{
    if (!*w->folder)
        return;
    unlink(w->weights);
    unlink(w->config);
    rmdir(w->folder);
}

static qn_status make_folder(written *w, qn_error *err)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(w->folder, sizeof w->folder, "%.1000s/quern-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(w->folder)) {
        qn__fail(err, QN_IO, "%s: %s", w->folder, strerror(errno));
        *w->folder = 0;
        return err->code;
    }
    snprintf(w->weights, sizeof w->weights, "%s/model.safetensors", w->folder);
    snprintf(w->config, sizeof w->config, "%s/config.json", w->folder);
    return QN_OK;
}

/* The header of a safetensors file: https://github.com/huggingface/safetensors#format */
static qn_status write_header(FILE *f, const qn_model *m, const char *dtype, size_t size)
{
    qn_text text = {0};
    uint64_t at = 0;
    bool ok = qn__text_append(&text, "{", 1);
    for (int i = 0; ok && i < qn_model_n_parameters(m); i++) {
        const char *name = qn_model_parameter_name(m, i);
        const qn_array *a = qn_model_parameter(m, name);
        uint64_t bytes = (uint64_t)qn_array_elements(a) * size;
        char entry[600], shape[64];
        int n = snprintf(shape, sizeof shape, "%lld", (long long)qn_array_dim(a, 0));
        if (qn_array_ndim(a) == 2)
            snprintf(shape + n, sizeof shape - (size_t)n, ",%lld", (long long)qn_array_dim(a, 1));
        n = snprintf(entry, sizeof entry,
                     "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                     i ? "," : "", name, dtype, shape, (unsigned long long)at,
                     (unsigned long long)(at + bytes));
        ok = qn__text_append(&text, entry, (size_t)n);
        at += bytes;
    }
    while (ok && text.n % 8 != 7)
        ok = qn__text_append(&text, " ", 1);
    ok = ok && qn__text_append(&text, "}", 1);
    uint64_t n = text.n;
    unsigned char head[8];
    for (int i = 0; i < 8; i++)
        head[i] = (unsigned char)(n >> (8 * i));
    ok = ok && fwrite(head, 1, 8, f) == 8 && fwrite(text.data, 1, text.n, f) == text.n;
    qn_text_free(&text);
    return ok ? QN_OK : QN_IO;
}

/* Numbers of either sign around 2^-6 in the type: a file is to be read, not to make sense. */
static void make_values(void *to, size_t size, bool f16)
{
    uint64_t state = 1;
    for (size_t i = 0; i < PIECE_VALUES; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(state >> 32);
        if (size == 4)
            ((uint32_t *)to)[i] = (bits & 0x807fffffu) | 0x3c800000u;
        else
            ((uint16_t *)to)[i] =
                (uint16_t)(f16 ? (bits & 0x83ffu) | 0x2400u : (bits & 0x807fu) | 0x3c80u);
    }
}

static qn_status write_values(FILE *f, const qn_model *m, size_t size, bool f16)
{
    char *piece = malloc(PIECE_VALUES * size);
    uint64_t left = 0;
    for (int i = 0; i < qn_model_n_parameters(m); i++)
        left += (uint64_t)qn_array_elements(qn_model_parameter(m, qn_model_parameter_name(m, i)));
    if (piece)
        make_values(piece, size, f16);
    bool ok = piece != NULL;
    while (ok && left) {
        size_t n = left < PIECE_VALUES ? (size_t)left : PIECE_VALUES;
        ok = fwrite(piece, size, n, f) == n && !atomic_load(&interrupted);
        left -= n;
    }
    free(piece);
    return ok ? QN_OK : QN_IO;
}

/* A model directory with the parameters of a model that is there. */
static qn_status write_model(written *w, const qn_model *m, const arguments *a, qn_error *err)
{
    const char *type = a->type ? a->type : "bf16", *config;
    bool f32 = !strcmp(type, "f32"), f16 = !strcmp(type, "f16");
    size_t n;
    char *owned = NULL;
    if (!f32 && !f16 && strcmp(type, "bf16") != 0)
        return qn__fail(err, QN_UNSUPPORTED,
                        "--load writes a --shape's weights as bf16, f16 or f32, not as %.40s; "
                        "quern convert makes other files, for -m",
                        type);
    if (make_folder(w, err) != QN_OK || shape_text(a->shape, &config, &n, &owned, err) != QN_OK)
        return err->code;
    FILE *f = fopen(w->config, "we");
    bool ok = f && fwrite(config, 1, n, f) == n;
    ok = f && fclose(f) == 0 && ok;
    free(owned);
    size_t size = f32 ? 4 : 2;
    if (ok && (f = fopen(w->weights, "we"))) {
        ok = write_header(f, m,
                          f32   ? "F32"
                          : f16 ? "F16"
                                : "BF16",
                          size) == QN_OK &&
             write_values(f, m, size, f16) == QN_OK;
        ok = fclose(f) == 0 && ok;
    } else {
        ok = false;
    }
    if (atomic_load(&interrupted))
        return qn__fail(err, QN_CANCELLED, "cancelled");
    return ok ? QN_OK : qn__fail(err, QN_IO, "%s: %s", w->weights, strerror(errno));
}

/* ---- timing ---------------------------------------------------------------------------------- */

static bool may_go_on(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    (void)done;
    (void)total;
    return !atomic_load(&interrupted);
}

/* The model anew, in so many seconds. */
static qn_status load_once(subject *s, const char *path, qn_products products, double *seconds,
                           qn_error *err)
{
    qn_model_options o = {
        .size = sizeof o, .no_tokenizer = true, .products = products, .progress = may_go_on};
    qn_model_close(s->model);
    s->model = NULL;
    double begun = qn__seconds();
    qn_model_open(&s->model, s->device, path, &o, err);
    *seconds = qn__seconds() - begun;
    return err->code;
}

static void print_load_head(const plan *p)
{
    if (p->form == FORM_MD)
        printf("| model | MiB in files | MiB on the device | threads | load, s | slowest | fastest "
               "| GB/s | copies to the device, GB/s | of these |\n"
               "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    else if (p->form == FORM_CSV)
        printf("model,file_bytes,weight_bytes,tier,threads,repeat,load_s,load_s_min,load_s_max,"
               "gb_s,copy_gb_s\n");
    else
        printf("{\"results\":[");
}

/* copies: bytes a second; 0: not measured. */
static void print_load(const plan *p, const subject *s, const double *sorted, double copies,
                       bool first)
{
    size_t n = (size_t)p->repeat;
    double seconds = median(sorted, n), least = sorted[0], most = sorted[n - 1];
    unsigned long long file = s->info.file_bytes, weights = s->info.weight_bytes;
    double rate = (double)file / seconds;
    if (first)
        print_load_head(p);
    if (p->form == FORM_MD) {
        printf("| %s | %.1f | %.1f | %d | %.4f | %.4f | %.4f | %.2f |", p->name,
               (double)file / (1 << 20), (double)weights / (1 << 20), s->threads, seconds, most,
               least, rate / 1e9);
        if (copies > 0)
            printf(" %.2f | %.0f %% |\n", copies / 1e9, 100 * rate / copies);
        else
            printf(" | |\n");
    } else if (p->form == FORM_CSV) {
        printf("\"%s\",%llu,%llu,%s,%d,%d,%.6f,%.6f,%.6f,%.4f,%.4f\n", p->name, file, weights,
               s->tier, s->threads, p->repeat, seconds, least, most, rate / 1e9, copies / 1e9);
    } else {
        printf("%s\n{\"model\":", first ? "" : ",");
        print_json_string(stdout, p->name, strlen(p->name));
        printf(",\"file_bytes\":%llu,\"weight_bytes\":%llu,\"tier\":\"%s\",\"threads\":%d,"
               "\"test\":\"load\",\"repeat\":%d,\"load_s\":%.6f,\"load_s_min\":%.6f,"
               "\"load_s_max\":%.6f,\"gb_s\":%.4f,\"copy_gb_s\":%.4f}",
               file, weights, s->tier, s->threads, p->repeat, seconds, least, most, rate / 1e9,
               copies / 1e9);
    }
    fflush(stdout);
}

/* The first load does not count: it fills the page cache. */
static qn_status time_loads(const plan *p, subject *s, const char *path, qn_products products,
                            double *seconds, qn_error *err)
{
    double unused;
    load_once(s, path, products, &unused, err);
    for (int i = 0; i < p->repeat && err->code == QN_OK; i++)
        load_once(s, path, products, &seconds[i], err);
    if (err->code == QN_OK)
        qn_model_get_info(s->model, &s->info);
    return err->code;
}

/* The files: the model's own, or such as are written. */
static qn_status find_files(written *w, char path[PATH_ROOM], const subject *s, const arguments *a,
                            qn_error *err)
{
    if (!a->shape)
        return locate_model(a->model, path, err);
    if (write_model(w, s->model, a, err) == QN_OK)
        snprintf(path, PATH_ROOM, "%s", w->folder);
    return err->code;
}

qn_status time_load(const plan *p, subject *s, const arguments *a, bool *first, qn_error *err)
{
    written w = {.folder = ""};
    char path[PATH_ROOM];
    qn_products products;
    double copies = 0, again = 0, *seconds = malloc((size_t)p->repeat * sizeof *seconds);
    if (!seconds)
        qn__fail_memory(err, "times");
    else if (products_of(a->products, &products, err) == QN_OK &&
             find_files(&w, path, s, a, err) == QN_OK) {
        if (!a->no_ceilings)
            copies = qn_device_copy_rate(s->device);
        if (time_loads(p, s, path, products, seconds, err) == QN_OK && !a->no_ceilings)
            again = qn_device_copy_rate(s->device);
    }
    remove_written(&w);
    if (err->code == QN_OK) {
        sort_values(seconds, (size_t)p->repeat);
        print_load(p, s, seconds, again > copies ? again : copies, *first);
        *first = false;
    }
    free(seconds);
    return err->code;
}
