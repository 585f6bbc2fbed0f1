/* SPDX-License-Identifier: Apache-2.0
 *
 * quern bench --load: how long a model takes from its files to the device, beside the rate of
 * copies to the device. Files that were just read or written are in the system's page cache: that
 * is what is timed, not a disk. For a --shape files are written first, in a folder of $TMPDIR that
 * goes away again.
 */
#include "base/error.h"
#include "base/file.h"
#include "cli/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files of a shape ------------------------------------------------------------------------ */

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
    tmp = tmp && *tmp ? tmp : "/tmp";
    int n = snprintf(w->folder, sizeof w->folder, "%s/quern-bench-XXXXXX", tmp);
    if (n >= (int)sizeof w->folder)
        qn__fail(err, QN_LIMIT, "TMPDIR has %zu bytes, at most %zu are supported", strlen(tmp),
                 sizeof w->folder - sizeof "/quern-bench-XXXXXX");
    else if (!mkdtemp(w->folder))
        qn__fail(err, QN_IO, "%s: %s", w->folder, strerror(errno));
    if (err->code != QN_OK) {
        *w->folder = 0;
        return err->code;
    }
    snprintf(w->weights, sizeof w->weights, "%s/model.safetensors", w->folder);
    snprintf(w->config, sizeof w->config, "%s/config.json", w->folder);
    return QN_OK;
}

static qn_status write_config(const char *path, const char *shape, qn_error *err)
{
    const char *config;
    char *owned;
    size_t n;
    qn__writer *writer;
    if (shape_text(shape, &config, &n, &owned, err) == QN_OK &&
        qn__writer_open(&writer, path, n, 0, err) == QN_OK) {
        if (qn__writer_write(writer, config, n, err) == QN_OK)
            qn__writer_commit(writer, err);
        else
            qn__writer_abort(writer);
    }
    free(owned);
    return err->code;
}

static int64_t most_elements(const qn_model *m)
{
    int64_t most = 0;
    for (int i = 0; i < qn_model_n_parameters(m); i++) {
        int64_t n = qn_array_elements(qn_model_parameter(m, qn_model_parameter_name(m, i)));
        most = n > most ? n : most;
    }
    return most;
}

/* A parameter's name and shape, with the first values that there are. */
static qn_named_array parameter_of(qn_scope *s, const qn_model *m, int i, qn_array *values)
{
    const char *name = qn_model_parameter_name(m, i);
    const qn_array *a = qn_model_parameter(m, name);
    int64_t shape[QN_MAX_NDIM];
    for (int d = 0; d < qn_array_ndim(a); d++)
        shape[d] = qn_array_dim(a, d);
    qn_array *some = qn_slice(s, values, 0, 0, qn_array_elements(a), 1);
    return (qn_named_array){name, qn_reshape(s, some, qn_array_ndim(a), shape)};
}

/* With the model's names and shapes, and one number everywhere: files are to be read, not to make
 * sense. */
static qn_status write_weights(const char *path, const qn_model *m, qn_dtype dtype, qn_error *err)
{
    int n = qn_model_n_parameters(m);
    int64_t most = most_elements(m);
    qn_named_array *arrays = calloc((size_t)n + 1, sizeof *arrays);
    qn_device *host = NULL;
    if (!arrays)
        return qn__fail_memory(err, "a model's parameters");
    if (qn_device_open(&host, "cpu", NULL, err) == QN_OK) {
        qn_scope *s = qn_scope_begin(host);
        qn_array *values = qn_full(s, dtype, 1, &most, 1.0 / 64);
        qn_eval(s, values);
        for (int i = 0; i < n; i++)
            arrays[i] = parameter_of(s, m, i, values);
        qn_tensors_write(s, path, arrays, n, err);
        qn_scope_end(s);
        qn_device_close(host);
    }
    free(arrays);
    return err->code;
}

/* A model directory with the parameters of a model that is there. */
static qn_status write_model(written *w, const qn_model *m, const arguments *a, qn_error *err)
{
    const char *type = a->type ? a->type : "bf16";
    qn_dtype dtype = !strcmp(type, "f32") ? QN_F32 : !strcmp(type, "f16") ? QN_F16 : QN_BF16;
    if (dtype == QN_BF16 && strcmp(type, "bf16") != 0)
        return qn__fail(err, QN_UNSUPPORTED,
                        "--load writes a --shape's weights as bf16, f16 or f32, not as %.40s; "
                        "quern convert makes other files, for -m",
                        type);
    if (make_folder(w, err) == QN_OK && write_config(w->config, a->shape, err) == QN_OK)
        write_weights(w->weights, m, dtype, err);
    return err->code;
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
static qn_status load_once(subject *s, const char *path, const qn_model_options *o, double *seconds,
                           qn_error *err)
{
    qn_model_close(s->model);
    s->model = NULL;
    double begun = qn__seconds();
    qn_model_open(&s->model, s->device, path, o, err);
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
        printf("\"%s\",%llu,%llu,%s,%d,%d,%.9f,%.9f,%.9f,%.4f,%.4f\n", p->name, file, weights,
               s->tier, s->threads, p->repeat, seconds, least, most, rate / 1e9, copies / 1e9);
    } else {
        printf("%s\n{\"model\":", first ? "" : ",");
        print_json_string(stdout, p->name, strlen(p->name));
        printf(",\"file_bytes\":%llu,\"weight_bytes\":%llu,\"tier\":\"%s\",\"threads\":%d,"
               "\"test\":\"load\",\"repeat\":%d,\"load_s\":%.9f,\"load_s_min\":%.9f,"
               "\"load_s_max\":%.9f,\"gb_s\":%.4f,\"copy_gb_s\":%.4f}",
               file, weights, s->tier, s->threads, p->repeat, seconds, least, most, rate / 1e9,
               copies / 1e9);
    }
    fflush(stdout);
}

/* The first load does not count: it fills the page cache. */
static qn_status time_loads(const plan *p, subject *s, const char *path, const qn_model_options *o,
                            double *seconds, qn_error *err)
{
    double unused;
    load_once(s, path, o, &unused, err);
    for (int i = 0; i < p->repeat && err->code == QN_OK; i++)
        load_once(s, path, o, &seconds[i], err);
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
    qn_model_options o = {.size = sizeof o,
                          .no_tokenizer = true,
                          .batch_invariant = a->batch_invariant,
                          .progress = may_go_on};
    double copies = 0, again = 0, *seconds = malloc((size_t)p->repeat * sizeof *seconds);
    if (!seconds)
        qn__fail_memory(err, "times");
    else if (products_of(a->products, &o.products, err) == QN_OK &&
             find_files(&w, path, s, a, err) == QN_OK) {
        if (!a->no_ceilings)
            copies = qn_device_copy_rate(s->device);
        if (time_loads(p, s, path, &o, seconds, err) == QN_OK && !a->no_ceilings)
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
