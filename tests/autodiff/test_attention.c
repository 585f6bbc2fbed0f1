/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention and its gradients against PyTorch's in f64 (tests/golden/make_attention.py), on every
 * tier, in f32 too; the same bits with one thread and three, and for a text alone and one behind
 * others in a row.
 */
#include "models/golden_model.h"
#include "ops/ops_test.h"
#include "quern/quern.h"

enum { CASES = 3, B = 0, H, G, L, S, D, E, CAUSAL, WINDOW, CAP, TEXTS, SETTINGS };
enum { O, DQ, DK, DV, PARTS };

typedef struct attention_data {
    double *settings, *q, *k, *v, *g, *want[PARTS];
    int32_t *first;
    int64_t n[PARTS], q_shape[4], k_shape[4], v_shape[4], o_shape[4];
} attention_data;

static void *read_tensor(const qn_tensors *file, int i, const char *name, size_t size, int64_t *n)
{
    char text[40];
    size_t words;
    snprintf(text, sizeof text, "%d.%s", i, name);
    void *data = golden_tensor(file, text, &words);
    if (n)
        *n = (int64_t)(words * 4 / size);
    return data;
}

static attention_data read_case(int i)
{
    qn_tensors *file = golden_open("attention");
    attention_data d;
    d.settings = read_tensor(file, i, "settings", 8, NULL);
    d.q = read_tensor(file, i, "q", 8, NULL);
    d.k = read_tensor(file, i, "k", 8, NULL);
    d.v = read_tensor(file, i, "v", 8, NULL);
    d.g = read_tensor(file, i, "g", 8, NULL);
    d.first = read_tensor(file, i, "first", 4, NULL);
    for (int p = 0; p < PARTS; p++)
        d.want[p] = read_tensor(file, i, (const char *[]){"o", "dq", "dk", "dv"}[p], 8, &d.n[p]);
    int64_t n[SETTINGS];
    for (int k = 0; k < SETTINGS; k++)
        n[k] = (int64_t)d.settings[k];
    memcpy(d.q_shape, (int64_t[]){n[B], n[H], n[L], n[D]}, sizeof d.q_shape);
    memcpy(d.k_shape, (int64_t[]){n[B], n[G], n[S], n[D]}, sizeof d.k_shape);
    memcpy(d.v_shape, (int64_t[]){n[B], n[G], n[S], n[E]}, sizeof d.v_shape);
    memcpy(d.o_shape, (int64_t[]){n[B], n[H], n[L], n[E]}, sizeof d.o_shape);
    qn_tensors_close(file);
    return d;
}

static void free_case(attention_data *d)
{
    free(d->settings), free(d->q), free(d->k), free(d->v), free(d->g), free(d->first);
    for (int p = 0; p < PARTS; p++)
        free(d->want[p]);
}

/* As f64 of values in the type; through: plain operations instead of the kernels. */
static void run(qn_device *device, const attention_data *d, qn_dtype type, bool through,
                double *out[PARTS])
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *x[] = {qn_cast(s, qn_from(s, QN_F64, 4, d->q_shape, d->q), type),
                     qn_cast(s, qn_from(s, QN_F64, 4, d->k_shape, d->k), type),
                     qn_cast(s, qn_from(s, QN_F64, 4, d->v_shape, d->v), type)};
    qn_array *g = qn_cast(s, qn_from(s, QN_F64, 4, d->o_shape, d->g), type), *made[PARTS];
    const int64_t rows[] = {d->q_shape[0], d->q_shape[2]};
    qn_attention_options o = {
        .size = sizeof o,
        .causal = d->settings[CAUSAL] != 0,
        .window = (int64_t)d->settings[WINDOW],
        .softcap = (float)d->settings[CAP],
        .mask = through ? qn_ones(s, QN_BOOL, 1, (const int64_t[]){1}) : NULL,
        .first = d->settings[TEXTS] > 1 ? qn_from(s, QN_I32, 2, rows, d->first) : NULL};
    made[O] = qn_attention(s, x[0], x[1], x[2], &o);
    assert_int_equal(qn_vjp(s, made[O], g, x, 3, made + DQ), QN_OK);
    for (int p = 0; p < PARTS; p++) {
        qn_array *wide = qn_cast(s, made[p], QN_F64);
        if (qn_read(s, wide, out[p], (size_t)d->n[p] * 8) != QN_OK)
            fail_msg("%s", qn_scope_error(s));
    }
    qn_scope_end(s);
}

static void check_parts(const attention_data *d, double *const got[PARTS], double most,
                        const char *what)
{
    for (int p = 0; p < PARTS; p++) {
        double error = 0, size = 0;
        for (int64_t i = 0; i < d->n[p]; i++) {
            error += pow(got[p][i] - d->want[p][i], 2);
            size += d->want[p][i] * d->want[p][i];
        }
        if (!(sqrt(error / size) <= most))
            fail_msg("%s, part %d: off by %.2g", what, p, sqrt(error / size));
    }
}

static void test_gradients(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int c = 0; c < CASES; c++) {
        attention_data d = read_case(c);
        double *one[PARTS], *three[PARTS];
        for (int p = 0; p < PARTS; p++) {
            one[p] = malloc((size_t)d.n[p] * 8);
            three[p] = malloc((size_t)d.n[p] * 8);
        }
        for (int r = 0; r < n; r++)
            for (int wide = 0; wide < 2; wide++) {
                double **got = r % 2 ? three : one; /* of each tier one thread, then three */
                char text[60];
                snprintf(text, sizeof text, "case %d, %s, %s", c, rigs[r].tier,
                         wide ? "f64" : "f32");
                run(rigs[r].device, &d, wide ? QN_F64 : QN_F32, true, got);
                check_parts(&d, got, wide ? 1e-13 : 2e-6, text);
                run(rigs[r].device, &d, wide ? QN_F64 : QN_F32, false, got);
                check_parts(&d, got, wide ? 1e-13 : 2e-6, text);
            }
        for (int r = 0; r + 1 < n; r += 2) {
            run(rigs[r].device, &d, QN_F32, false, one);
            run(rigs[r + 1].device, &d, QN_F32, false, three);
            for (int p = 0; p < PARTS; p++)
                assert_memory_equal(one[p], three[p], (size_t)d.n[p] * 8);
        }
        for (int p = 0; p < PARTS; p++)
            free(one[p]), free(three[p]);
        free_case(&d);
    }
    close_rigs(rigs, n);
}

/* The rows of the last text of case 1 alone. */
static void test_packed_rows(void **state)
{
    qn_device *device = open_cpu(state);
    attention_data d = read_case(1), part = read_case(1);
    double *all[PARTS], *alone[PARTS];
    int64_t n = d.q_shape[2], begin = d.first[n - 1];
    assert_true(begin > 0);
    for (int p = 0; p < PARTS; p++) {
        all[p] = malloc((size_t)d.n[p] * 8);
        alone[p] = malloc((size_t)d.n[p] * 8);
    }
    run(device, &d, QN_F32, false, all);
    double *values[] = {part.q, part.k, part.v, part.g};
    int64_t *shapes[] = {part.q_shape, part.k_shape, part.v_shape, part.o_shape};
    for (int i = 0; i < 4; i++) { /* D and E are the same here */
        int64_t heads = shapes[i][1], width = shapes[i][3];
        for (int64_t h = 0; h < heads; h++)
            memmove(values[i] + h * (n - begin) * width, values[i] + (h * n + begin) * width,
                    (size_t)((n - begin) * width) * 8);
        shapes[i][2] = n - begin;
    }
    part.settings[TEXTS] = 1;
    for (int p = 0; p < PARTS; p++)
        part.n[p] = part.n[p] / n * (n - begin);
    run(device, &part, QN_F32, false, alone);
    for (int p = 0; p < PARTS; p++) {
        int64_t heads = p == O || p == DQ ? d.q_shape[1] : d.k_shape[1], width = d.q_shape[3];
        double most = 0;
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < (n - begin) * width; i++) {
                double a = all[p][(h * n + begin) * width + i],
                       b = alone[p][h * (n - begin) * width + i];
                most = fabs(a - b) > most ? fabs(a - b) : most;
            }
        assert_true(p == O ? most == 0 : most < 1e-5); /* tiles cut the sums of gradients */
    }
    for (int p = 0; p < PARTS; p++)
        free(all[p]), free(alone[p]);
    free_case(&d);
    free_case(&part);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients),
                                       cmocka_unit_test(test_packed_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
