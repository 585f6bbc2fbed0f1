/* SPDX-License-Identifier: Apache-2.0
 *
 * Ternary weights of Hugging Face: configurations and tensors that are refused, each in one line
 * that names the file, the field or tensor and what there is; how a master becomes ternary.
 */
#include "models/golden_model.h"

#include "../base/fail_alloc.h"
#include "models/load.h"
#include "models/weight.h"

#include <math.h>

/* ---- refusals -------------------------------------------------------------------------------- */

static char *read_file(const char *directory, const char *file, size_t *n)
{
    char path[700], *data;
    qn_error err = {0};
    snprintf(path, sizeof path, "%s/%s", directory, file);
    if (qn__file_read(path, 4 << 20, &data, n, &err) != QN_OK)
        fail_msg("%s", err.message);
    return data;
}

/* A golden model in "m", one text of its configuration, or of its header and there as long,
 * another.
 */
typedef struct variant {
    const char *model, *file, *was, *is;
    qn_status code;
    const char *parts; /* of the message, separated by | */
} variant;

static void write_variant(const variant *v)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char from[600], name[60];
    golden_directory(from, sizeof from, v->model);
    if (access(temp_path("m"), F_OK) != 0)
        temp_mkdir("m");
    for (int i = 0; i < 2; i++) {
        size_t n, was = strlen(v->was), is = strlen(v->is);
        char *data = read_file(from, files[i], &n), *changed = malloc(n + is + 1), *at = NULL;
        memcpy(changed, data, n);
        if (!strcmp(files[i], v->file) && !(at = memmem(changed, n, v->was, was)))
            fail_msg("%s has no %s", v->file, v->was);
        if (at) {
            size_t begin = (size_t)(at - changed);
            memcpy(at, v->is, is);
            memcpy(at + is, data + begin + was, n - begin - was);
            n = n - was + is;
        }
        snprintf(name, sizeof name, "m/%s", files[i]);
        temp_write(name, changed, n);
        free(data);
        free(changed);
    }
}

static void refused(qn_device *device, const variant *v)
{
    qn_model *model;
    qn_error err = {0};
    qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    write_variant(v);
    qn_status status = qn_model_open(&model, device, temp_path("m"), &o, &err);
    if (status != v->code || strchr(err.message, '\n'))
        fail_msg("%s: status %d: %s", v->is, (int)status, err.message);
    char copy[400];
    snprintf(copy, sizeof copy, "%s", v->parts);
    for (char *save, *part = strtok_r(copy, "|", &save); part; part = strtok_r(NULL, "|", &save))
        if (!strstr(err.message, part))
            fail_msg("\"%s\" lacks \"%s\"", err.message, part);
}

#define UP "model.layers.1.mlp.up_proj.weight"

static void test_refusals(void **state)
{
    static const variant variants[] = {
        {"bitnet/packed", "config.json", "\"autobitlinear\"", "\"trilinear\"", QN_UNSUPPORTED,
         "config.json|quantization_config|linear_class \"trilinear\"|\"bitlinear\" or "
         "\"autobitlinear\""},
        {"bitnet/packed", "config.json", "\"offline\"", "\"later\"", QN_UNSUPPORTED,
         "config.json|quantization_mode \"later\"|\"offline\" or \"online\""},
        {"bitnet/packed", "config.json", "\"offline\"", "\"offline\", \"use_rms_norm\": true",
         QN_UNSUPPORTED, "config.json|use_rms_norm true|supported is false"},
        {"bitnet/packed", "config.json", "\"offline\"", "\"offline\", \"use_rms_norm\": 1",
         QN_FORMAT, "config.json|use_rms_norm"},
        {"bitnet/bitlinear", "config.json", "\"lm_head\"", "", QN_UNSUPPORTED,
         "config.json|modules_to_not_convert|[\"lm_head\"]"},
        {"bitnet/bitlinear", "config.json", "\"lm_head\"", "\"lm_head\", \"q_proj\"",
         QN_UNSUPPORTED, "config.json|modules_to_not_convert|other layers than lm_head"},
        {"bitnet/bitlinear", "config.json", "\"bitnet\",\n    \"modules",
         "\"bitnut\",\n    \"modules", QN_UNSUPPORTED, "config.json|quantised by bitnut|BitNet's"},
        {"bitnet/packed", "config.json", "\"relu2\"", "\"tanh\"", QN_UNSUPPORTED,
         "config.json|hidden_act \"tanh\"|\"relu2\" or \"silu\""},
        {"bitnet/packed", "model.safetensors", UP "_scale", UP "_skale", QN_FORMAT,
         "model.safetensors|tensor " UP "_scale is missing (a bitnet of 2 layers"},
        {"bitnet/packed", "model.safetensors", UP "_scale\":{\"dtype\":\"F32",
         UP "_scale\":{\"dtype\":\"I32", QN_FORMAT,
         "model.safetensors|tensor " UP "_scale is 1 of i32|one number in f32, bf16 or f16"},
        {"bitnet/packed", "model.safetensors", UP "_scale\":{\"dtype\":\"F32\",\"shape\":[1]",
         UP "_scale\":{\"dtype\":\"F16\",\"shape\":[2]", QN_FORMAT,
         "model.safetensors|tensor " UP "_scale is 2 of f16|belongs to " UP},
        {"bitnet/packed", "model.safetensors", UP "\":{\"dtype\":\"U8\",\"shape\":[64,256]",
         UP "\":{\"dtype\":\"U8\",\"shape\":[32,512]", QN_FORMAT,
         "model.safetensors|tensor " UP
         " has shape [32, 512], config.json asks for [256 / 4, 256]"},
        {"bitnet/packed", "model.safetensors", UP "\":{\"dtype\":\"U8", UP "\":{\"dtype\":\"I8",
         QN_UNSUPPORTED, "model.safetensors|tensor " UP " is i8; config.json says|codes in u8"},
        /* what MLX has beside its codes is nothing here */
        {"bitnet/unpacked", "model.safetensors",
         UP "_scale\":", "model.layers.1.mlp.up_proj.scales\"      :", QN_FORMAT,
         "model.safetensors|tensor " UP "_scale is missing"},
        /* floats where there have to be codes, and codes where there have to be floats */
        {"bitnet/online", "config.json", "\"autobitlinear\"", "\"bitlinear\"", QN_UNSUPPORTED,
         "model.safetensors|_proj.weight is f32; config.json says that it is ternary codes in u8"},
        {"bitnet/online", "config.json", "\"online\"", "\"offline\"", QN_FORMAT,
         "model.safetensors|_proj.weight_scale is missing"},
        {"bitnet/packed", "config.json", "\"offline\"", "\"online\"", QN_UNSUPPORTED,
         "model.safetensors|_proj.weight is u8; config.json says that it is f32, bf16 or f16"},
        {"bitnet/packed", "config.json", "\"quant_method\": \"bitnet\"", "\"group_size\": 64",
         QN_FORMAT,
         "model.safetensors|_proj.weight has shape [64, 256], config.json asks for [256, 256]"},
    };
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        refused(device, &variants[i]);
    qn_device_close(device);
}

/* The bytes of a tensor of "m" changed. */
static void refused_values(qn_device *device, const char *model, const char *name, float value,
                           const char *parts)
{
    variant v = {model, "config.json", "{", "{", QN_FORMAT, parts};
    char path[700];
    qn_tensors *file;
    write_variant(&v);
    snprintf(path, sizeof path, "%s", temp_path("m/model.safetensors"));
    assert_int_equal(qn_tensors_open(&file, path, NULL), QN_OK);
    const qn_tensor_info *t = qn_tensors_find(file, name);
    assert_non_null(t);
    FILE *f = fopen(path, "r+b");
    assert_int_equal(fseek(f, (long)t->offset, SEEK_SET), 0);
    assert_int_equal(fwrite(&value, sizeof value, 1, f), 1);
    fclose(f);
    qn_tensors_close(file);
    qn_model *m;
    qn_error err = {0};
    qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    assert_int_equal(qn_model_open(&m, device, temp_path("m"), &o, &err), QN_FORMAT);
    char copy[300];
    snprintf(copy, sizeof copy, "%s", parts);
    for (char *save, *part = strtok_r(copy, "|", &save); part; part = strtok_r(NULL, "|", &save))
        if (!strstr(err.message, part))
            fail_msg("\"%s\" lacks \"%s\"", err.message, part);
}

static void test_bad_values(void **state)
{
    qn_device *device = open_cpu(state);
    refused_values(device, "bitnet/packed", UP "_scale", 0,
                   "model.safetensors|" UP "_scale|scale of " UP " comes out as 0");
    refused_values(device, "bitnet/packed", UP "_scale", NAN, UP "_scale|comes out as");
    refused_values(device, "bitnet/bitlinear", UP "_scale", 0, UP "_scale|comes out as inf");
    refused_values(device, "bitnet/online", UP, INFINITY, UP "|scale of all rows comes out as inf");
    refused_values(device, "bitnet/unpacked", UP, 0.25f, UP ", row 0: a value is none of -1, 0");
    refused_values(device, "bitnet/unpacked", UP, -2, UP ", row 0: a value is none of -1, 0");
    qn_device_close(device);
}

/* A scale beside a tensor that takes none is told of, one that is used is not. */
static int unread;

static void count_unread(void *user, qn_log_level level, const char *text)
{
    (void)user;
    unread += level == QN_LOG_WARN && strstr(text, "weight_scale") != NULL;
}

static void test_unread_scales(void **state)
{
    (void)state;
    static const struct {
        variant v;
        int warnings;
    } cases[] = {{{"bitnet/packed", "config.json", "{", "{", QN_OK, ""}, 0},
                 {{"bitnet/bitlinear", "config.json", "{", "{", QN_OK, ""}, 0},
                 {{"bitnet/unpacked", "config.json", "\"offline\"", "\"online\"", QN_OK, ""}, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_device *device;
        qn__decoder m;
        qn_error err = {0};
        qn_device_options options = {.size = sizeof options, .threads = 1, .log = count_unread};
        write_variant(&cases[i].v);
        assert_int_equal(qn_device_open(&device, "cpu", &options, &err), QN_OK);
        unread = 0;
        assert_int_equal(qn__decoder_load(&m, device, temp_path("m"), NULL, NULL, &err), QN_OK);
        assert_int_equal(unread, cases[i].warnings);
        qn__decoder_end(&m);
        qn_device_close(device);
    }
}

/* ---- masters --------------------------------------------------------------------------------- */

enum { K = 128 };

/* One row of a master: its codes and what they are multiples of. */
static float made_ternary(const float *row, qn_dtype dtype, float *codes)
{
    static uint16_t half[K];
    uint8_t blocks[K / 4];
    float factor = 0;
    qn_error err = {0};
    qn_array *slot, *factor_slot;
    for (int i = 0; i < K; i++)
        half[i] = qn__f32_to_bf16(row[i]);
    qn__tensor_data t = {.name = "w.weight", .dtype = dtype, .ndim = 2, .shape = {1, K}};
    t.data = dtype == QN_BF16 ? (const void *)half : row;
    const char *path = temp_path("master.safetensors");
    assert_int_equal(qn__safetensors_write(path, &t, 1, NULL, 0, &err), QN_OK);
    qn_tensors *file;
    assert_int_equal(qn_tensors_open(&file, path, &err), QN_OK);
    qn__parameter p = {.stored = "w.weight",
                       .slot = &slot,
                       .factor = &factor_slot,
                       .ternary = QN__TERNARY_MASTER,
                       .shape = {1, K},
                       .ndim = 2};
    qn__weight w;
    if (qn__weight_find(&w, file, &p, NULL, "a test", "config.json", &err) != QN_OK ||
        qn__weight_factor(&w, file, &factor, &err) != QN_OK ||
        qn__weight_read(&w, file, 0, 1, blocks, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_ptr_equal(w.encoding, &qn__encodings[QN__I2_S]);
    w.encoding->decode(w.encoding, blocks, 1, codes);
    qn_tensors_close(file);
    return factor;
}

/* In units of the mean magnitude, halves to even: 0.5 is 0, 1.5 is 2, which is cut to 1. */
static void test_masters(void **state)
{
    (void)state;
    float row[K], codes[K];
    for (int i = 0; i < K; i++)
        row[i] = (i % 2 ? 1.5f : 0.5f) * (i % 3 ? 1.0f : -1.0f);
    assert_true(made_ternary(row, QN_F32, codes) == 1);
    for (int i = 0; i < K; i++)
        assert_true(codes[i] == (i % 2 ? (i % 3 ? 1 : -1) : 0));
    for (int i = 0; i < K; i++) /* the mean is 1 + 1.25 / 128, of which bf16 keeps 1 + 1 / 128 */
        row[i] = i < 5 ? 1.25f : i % 2 ? 1 : -1;
    assert_true(fabsf(made_ternary(row, QN_F32, codes) - 1.009765625f) < 2e-7f);
    assert_true(made_ternary(row, QN_BF16, codes) == 1.0078125f);
    for (int i = 0; i < K; i++) /* what is less than 1e-5 counts as that */
        row[i] = i ? 2e-6f : 8e-6f;
    assert_true(fabsf(made_ternary(row, QN_F32, codes) - 1e-5f) < 1e-11f);
    assert_true(codes[0] == 1 && codes[1] == 0);
}

/* ---- failing allocations --------------------------------------------------------------------- */

static void test_failing_allocations(void **state)
{
    static const char *const names[] = {"bitnet/packed", "bitnet/online"};
    qn_device *device = open_cpu(state);
    for (int i = 0; i < 2; i++) {
        char path[600];
        golden_directory(path, sizeof path, names[i]);
        for (long n = 0;; n++) {
            qn__decoder m;
            qn_error err = {0};
            fail_allocation_begin(n);
            qn_status status = qn__decoder_load(&m, device, path, NULL, NULL, &err);
            bool failed = fail_allocation_end();
            if (status == QN_OK)
                qn__decoder_end(&m);
            else if (!failed || status != QN_MEMORY)
                fail_msg("allocation %ld: %s", n, err.message);
            if (!failed) {
                assert_true(n > 40);
                break;
            }
        }
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_unread_scales),
        cmocka_unit_test(test_masters),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
