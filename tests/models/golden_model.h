/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiny models of tests/golden: a path to each, its weights drawn anew where the repository has
 * only their recipe (tests/golden/make_families.py), and the golden tensors beside it.
 */
#ifndef QN_TESTS_MODELS_GOLDEN_MODEL_H
#define QN_TESTS_MODELS_GOLDEN_MODEL_H

#include "test.h"

#include "base/temp_dir.h"
#include "core/dtype.h"
#include "io/safetensors.h"

enum { GOLDEN_TENSORS = 200 };

/* A file of tests/golden/<name>; NULL: the directory. */
static inline void golden_path(char *path, size_t room, const char *name, const char *file)
{
    snprintf(path, room, "%s/tests/golden/%s%s%s", getenv("QUERN_SOURCE"), name, file ? "/" : "",
             file ? file : "");
}

static inline uint64_t golden_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t golden_state(const char *name, uint64_t seed)
{
    uint64_t state = 0xcbf29ce484222325u;
    for (const char *c = name; *c; c++)
        state = (state ^ (unsigned char)*c) * 0x100000001b3u;
    return state + seed;
}

/* Four ternary codes a byte, or -1, 0 and 1. */
static inline void *golden_ternary(const char *name, uint64_t seed, bool codes, size_t n)
{
    uint64_t state = golden_state(name, seed);
    float *signs = codes ? NULL : malloc(n * sizeof *signs);
    uint8_t *bytes = codes ? malloc(n) : NULL;
    for (size_t i = 0; i < n; i++) {
        uint64_t z = golden_mix(state + i * 0x9e3779b97f4a7c15u);
        uint32_t byte = 0;
        for (int j = 0; j < 4; j++)
            byte |= (uint32_t)((z >> 8 * j & 255) % 3) << 2 * j;
        if (codes)
            bytes[i] = (uint8_t)byte;
        else
            signs[i] = (float)(byte & 3) - 1;
    }
    return codes ? (void *)bytes : signs;
}

static inline float *golden_draw(const char *name, uint64_t seed, double offset, double scale,
                                 size_t n)
{
    uint64_t state = golden_state(name, seed);
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        int k = (int8_t)(golden_mix(state + i * 0x9e3779b97f4a7c15u) >> 56);
        values[i] = (float)(offset + (k < -127 ? -127 : k) * (scale / 65536));
    }
    return values;
}

/* One line of weights.txt; false at the end. */
static inline bool golden_line(FILE *f, char *name, qn__tensor_data *t)
{
    unsigned long long seed;
    double scale;
    char line[300], offset[40];
    if (!fgets(line, sizeof line, f))
        return false;
    long long shape[2] = {0, 1};
    int n = sscanf(line, "%119s %llu %39s %lf %lld %lld", name, &seed, offset, &scale, &shape[0],
                   &shape[1]);
    assert_true(n == 5 || n == 6);
    *t = (qn__tensor_data){.name = name, .dtype = QN_F32, .ndim = n - 4};
    t->shape[0] = shape[0];
    t->shape[1] = shape[1];
    bool codes = !strcmp(offset, "codes");
    size_t count = (size_t)(shape[0] * shape[1]);
    t->dtype = codes ? QN_U8 : QN_F32;
    t->data = codes || !strcmp(offset, "signs")
                  ? golden_ternary(name, seed, codes, count)
                  : (void *)golden_draw(name, seed, strtod(offset, NULL), scale, count);
    return true;
}

/* f32 values to bf16 in place. */
static inline void golden_halve(qn__tensor_data *t)
{
    float *from = (float *)(uintptr_t)t->data;
    uint16_t *to = (uint16_t *)(uintptr_t)t->data;
    int64_t n = t->shape[0] * (t->ndim > 1 ? t->shape[1] : 1);
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits = qn__f32_to_bf16(from[i]);
        memcpy(to + i, &bits, sizeof bits);
    }
    t->dtype = QN_BF16;
}

/* Writes the weights that weights.txt describes to `directory`, in f32 or bf16. */
static inline void golden_weights(FILE *f, const char *directory, bool half)
{
    static char names[GOLDEN_TENSORS][120];
    static qn__tensor_data tensors[GOLDEN_TENSORS];
    char path[700];
    size_t n = 0;
    while (n < GOLDEN_TENSORS && golden_line(f, names[n], &tensors[n]))
        n++;
    assert_true(n > 0 && n < GOLDEN_TENSORS);
    for (size_t i = 0; half && i < n; i++)
        if (tensors[i].dtype == QN_F32)
            golden_halve(&tensors[i]);
    qn_error err = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    if (qn__safetensors_write(path, tensors, n, NULL, 0, &err) != QN_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)tensors[i].data);
}

/* Copies config.json; `half`: "float32" becomes "bfloat16". */
static inline void golden_config(const char *from, const char *to, bool half)
{
    static char data[1 << 14];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    size_t n = fread(data, 1, sizeof data - 1, in);
    assert_true(n < sizeof data - 1);
    data[n] = 0;
    char *at = data;
    for (char *type; half && (type = strstr(at, "float32")); at = type + 7)
        fprintf(out, "%.*sbfloat16", (int)(type - at), at);
    fputs(at, out);
    fclose(in);
    fclose(out);
}

/* The directory of a golden model, "family/name": the repository's own, or where weights.txt says
 * what they are one below temp_root (temp_begin has been called), made on the first call, with
 * weights in f32 or bf16. */
static inline void golden_directory_of(char *path, size_t room, const char *name, bool half)
{
    char file[600], to[700], flat[100];
    golden_path(path, room, name, NULL);
    golden_path(file, sizeof file, name, "weights.txt");
    FILE *f = fopen(file, "r");
    if (!f)
        return;
    snprintf(flat, sizeof flat, "%s%s", name, half ? "-bf16" : "");
    *strchr(flat, '/') = '-';
    snprintf(path, room, "%s/%s", temp_root, flat);
    if (mkdir(path, 0777) == 0) {
        golden_weights(f, path, half);
        golden_path(file, sizeof file, name, "config.json");
        snprintf(to, sizeof to, "%s/config.json", path);
        golden_config(file, to, half);
    }
    fclose(f);
}

static inline void golden_directory(char *path, size_t room, const char *name)
{
    golden_directory_of(path, room, name, false);
}

/* golden.safetensors of a model. */
static inline qn_tensors *golden_open(const char *name)
{
    char path[600];
    qn_tensors *file;
    qn_error err = {0};
    golden_path(path, sizeof path, name, "golden.safetensors");
    if (qn_tensors_open(&file, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return file;
}

/* A tensor's values, malloced; *n receives their number. */
static inline void *golden_tensor(const qn_tensors *file, const char *name, size_t *n)
{
    const qn_tensor_info *t = qn_tensors_find(file, name);
    if (!t)
        fail_msg("golden tensor %s is missing", name);
    void *data = malloc(t->bytes + 1);
    qn_error err = {0};
    if (qn_tensors_read_bytes(file, t, 0, t->bytes, data, &err) != QN_OK)
        fail_msg("%s", err.message);
    *n = t->bytes / 4;
    return data;
}

/* NMSE of the rows that the golden file kept, [256, width] given. */
static inline double golden_rows(const qn_tensors *file, const char *values, const char *positions,
                                 const float *ours, size_t width)
{
    size_t n, n_positions;
    float *want = golden_tensor(file, values, &n);
    int32_t *at = golden_tensor(file, positions, &n_positions);
    assert_int_equal(n, n_positions * width);
    float *got = malloc(n * sizeof *got);
    for (size_t i = 0; i < n_positions; i++)
        memcpy(got + i * width, ours + (size_t)at[i] * width, width * sizeof *got);
    double e = nmse(got, want, n);
    free(got);
    free(want);
    free(at);
    return e;
}

#endif
