/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations against what NumPy made of the same arrays (golden/ops/cases.txt, written by
 * golden/make_ops.py), on every tier, from every layout in memory.
 */
#include "ops/ops_test.h"

enum { MOST_ARGS = 3, MOST_PAR = 10, MOST_OUTS = 3 };

/* ---- the operations by the names of the file ----------------------------------------------------
 */

typedef void golden_fn(qn_scope *s, qn_array **x, const int64_t *p, qn_array **y);

#define GOLDEN(name, value)                                                                        \
    static void g_##name(qn_scope *s, qn_array **x, const int64_t *p, qn_array **y)                \
    {                                                                                              \
        (void)x, (void)p;                                                                          \
        y[0] = value;                                                                              \
    }
GOLDEN(sort, qn_sort(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(argsort, qn_argsort(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(cumsum, qn_cumsum(s, x[0], (int)p[0], p[1] != 0, p[2] != 0))
GOLDEN(cumprod, qn_cumprod(s, x[0], (int)p[0], p[1] != 0, p[2] != 0))
GOLDEN(cummax, qn_cummax(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(cummin, qn_cummin(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(prod, qn_prod(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(all, qn_all(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(any, qn_any(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(argmin, qn_argmin(s, x[0], (int)p[0], p[1] != 0))
GOLDEN(var, qn_var(s, x[0], (int)p[0], p[2], p[1] != 0))
GOLDEN(take_along, qn_take_along(s, x[0], x[1], (int)p[0]))
GOLDEN(put_along, qn_put_along(s, x[0], x[1], x[2], (int)p[0], (qn_scatter_mode)p[1]))
GOLDEN(scatter, qn_scatter(s, x[0], x[1], x[2], (int)p[0], (qn_scatter_mode)p[1]))
GOLDEN(gather_nd, qn_gather_nd(s, x[0], x[1]))
GOLDEN(scatter_nd, qn_scatter_nd(s, x[0], x[1], x[2], (qn_scatter_mode)p[0]))
GOLDEN(slice_at, qn_slice_at(s, x[0], x[1], p))
GOLDEN(slice_update_at, qn_slice_update_at(s, x[0], x[1], x[2]))
GOLDEN(slice, qn_slice(s, x[0], (int)p[0], p[1], p[2], p[3]))
GOLDEN(flip, qn_flip(s, x[0], (int)p[0]))
GOLDEN(as_strided, qn_as_strided(s, x[0], (int)p[0], p + 1, p + 1 + p[0], p[1 + 2 * p[0]]))
GOLDEN(eye, qn_eye(s, qn_array_dtype(x[0]), p[0], p[1], p[2]))
GOLDEN(tri, qn_tri(s, qn_array_dtype(x[0]), p[0], p[1], p[2]))
GOLDEN(tril, qn_tril(s, x[0], p[0]))
GOLDEN(triu, qn_triu(s, x[0], p[0]))
GOLDEN(diagonal, qn_diagonal(s, x[0], p[0]))
GOLDEN(diag, qn_diag(s, x[0], p[0]))
GOLDEN(tile, qn_tile(s, x[0], (int)p[0], p[1]))
GOLDEN(repeat, qn_repeat(s, x[0], (int)p[0], p[1]))
GOLDEN(roll, qn_roll(s, x[0], p[0], (int)p[1]))
GOLDEN(stack, qn_stack(s, x, 2, (int)p[0]))
GOLDEN(flatten, qn_flatten(s, x[0]))
GOLDEN(move_axis, qn_move_axis(s, x[0], (int)p[0], (int)p[1]))
GOLDEN(pad, qn_pad(s, x[0], p, p + 3, 1))
GOLDEN(linspace, qn_linspace(s, qn_array_dtype(x[0]), (double)p[0], (double)p[1], p[2]))

static void g_topk(qn_scope *s, qn_array **x, const int64_t *p, qn_array **y)
{
    qn_topk(s, x[0], p[0], (int)p[1], &y[0], &y[1]);
}

static void g_split(qn_scope *s, qn_array **x, const int64_t *p, qn_array **y)
{
    qn_split(s, x[0], (int)p[0], (int)p[1], y);
}

static void over_axes(qn_scope *s, qn_reduction *f, qn_array **x, const int64_t *p, int n,
                      qn_array **y)
{
    int axes[MOST_PAR];
    for (int i = 0; i < n; i++)
        axes[i] = (int)p[1 + i];
    y[0] = qn_over_axes(s, f, x[0], axes, n, p[0] != 0);
}

static const struct {
    const char *name;
    golden_fn *f;
} operations[] = {
    {"sort", g_sort},
    {"argsort", g_argsort},
    {"cumsum", g_cumsum},
    {"cumprod", g_cumprod},
    {"cummax", g_cummax},
    {"cummin", g_cummin},
    {"prod", g_prod},
    {"all", g_all},
    {"any", g_any},
    {"argmin", g_argmin},
    {"var", g_var},
    {"take_along", g_take_along},
    {"put_along", g_put_along},
    {"scatter", g_scatter},
    {"gather_nd", g_gather_nd},
    {"slice", g_slice},
    {"scatter_nd", g_scatter_nd},
    {"slice_at", g_slice_at},
    {"flip", g_flip},
    {"as_strided", g_as_strided},
    {"slice_update_at", g_slice_update_at},
    {"eye", g_eye},
    {"tri", g_tri},
    {"tril", g_tril},
    {"triu", g_triu},
    {"diagonal", g_diagonal},
    {"diag", g_diag},
    {"tile", g_tile},
    {"repeat", g_repeat},
    {"roll", g_roll},
    {"stack", g_stack},
    {"flatten", g_flatten},
    {"move_axis", g_move_axis},
    {"pad", g_pad},
    {"linspace", g_linspace},
    {"topk", g_topk},
    {"split", g_split},
};

/* ---- the file -----------------------------------------------------------------------------------
 */

typedef struct golden {
    char name[32];
    double units;
    int n_par, n_args, n_outs;
    int64_t par[MOST_PAR];
    host arg[MOST_ARGS], out[MOST_OUTS];
} golden;

static qn_dtype type_named(const char *name)
{
    for (int t = 0; t < QN_DTYPE_COUNT; t++)
        if (!strcmp(name, qn_dtype_name((qn_dtype)t)))
            return (qn_dtype)t;
    fail_msg("no type %s", name);
    return QN_F32;
}

static host read_array(FILE *f)
{
    char type[16];
    int ndim;
    long long size;
    int64_t shape[QN_MAX_NDIM] = {0};
    assert_int_equal(fscanf(f, "%15s %d", type, &ndim), 2);
    assert_in_range(ndim, 0, QN_MAX_NDIM);
    for (int i = 0; i < ndim; i++, shape[i - 1] = size)
        assert_int_equal(fscanf(f, "%lld", &size), 1);
    host h = new_host(type_named(type), ndim, shape);
    for (size_t i = 0; i < h.n; i++) {
        assert_int_equal(fscanf(f, "%lf", &h.v[i]), 1);
        h.v[i] = round_to(h.v[i], h.dtype);
    }
    return h;
}

/* Reads the next case; false at the end. The word after it is read ahead into `word`. */
static bool read_case(FILE *f, golden *c, char *word)
{
    if (strcmp(word, "op") != 0)
        return false;
    *c = (golden){.n_par = 0};
    assert_int_equal(fscanf(f, "%31s %lf", c->name, &c->units), 2);
    while (word[0] = 0, fscanf(f, "%15s", word) == 1 && strcmp(word, "op") != 0) {
        if (!strcmp(word, "par")) {
            assert_int_equal(fscanf(f, "%d", &c->n_par), 1);
            assert_in_range(c->n_par, 0, MOST_PAR);
            for (int i = 0; i < c->n_par; i++) {
                long long v;
                assert_int_equal(fscanf(f, "%lld", &v), 1);
                c->par[i] = v;
            }
        } else if (!strcmp(word, "arg")) {
            assert_true(c->n_args < MOST_ARGS);
            c->arg[c->n_args++] = read_array(f);
        } else {
            assert_true(c->n_outs < MOST_OUTS);
            c->out[c->n_outs++] = read_array(f);
        }
    }
    return true;
}

/* ---- the test -----------------------------------------------------------------------------------
 */

static void apply(qn_scope *s, const golden *c, qn_array **x, qn_array **y)
{
    if (!strcmp(c->name, "sum_axes") || !strcmp(c->name, "max_axes")) {
        over_axes(s, c->name[0] == 's' ? qn_sum : qn_max, x, c->par, c->n_par - 1, y);
        return;
    }
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(c->name, operations[i].name)) {
            operations[i].f(s, x, c->par, y);
            return;
        }
    fail_msg("no operation %s", c->name);
}

static void check_case(const rig *r, const golden *c, int number)
{
    for (int l = 0; l < N_LAYOUTS; l++) {
        char what[160];
        snprintf(what, sizeof what, "case %d, %s of %s, %s, layout %d", number, c->name,
                 qn_dtype_name(c->arg[0].dtype), r->tier, l);
        qn_scope *s = qn_scope_begin(r->device);
        qn_array *x[MOST_ARGS], *y[MOST_OUTS];
        for (int i = 0; i < c->n_args; i++)
            x[i] = put(s, &c->arg[i], (layout)((l + i) % N_LAYOUTS));
        apply(s, c, x, y);
        for (int i = 0; i < c->n_outs; i++) {
            const host *want = &c->out[i];
            void *raw = get(s, y[i], want->dtype, want->ndim, want->shape, what);
            check_values(raw, want->dtype, want->v, want->n, c->units, 0, what);
            free(raw);
        }
        qn_scope_end(s);
    }
}

static void test_cases(void **state)
{
    (void)state;
    char path[512], word[16] = "";
    snprintf(path, sizeof path, "%s/tests/golden/ops/cases.txt", getenv("QUERN_SOURCE"));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs), n_cases = 0;
    golden c;
    assert_int_equal(fscanf(f, "%15s", word), 1);
    while (read_case(f, &c, word)) {
        for (int r = 0; r < n; r++)
            if (rigs[r].threads == 1)
                check_case(&rigs[r], &c, n_cases);
        for (int i = 0; i < c.n_args; i++)
            free(c.arg[i].v);
        for (int i = 0; i < c.n_outs; i++)
            free(c.out[i].v);
        n_cases++;
    }
    fclose(f);
    close_rigs(rigs, n);
    printf("%d cases of NumPy\n", n_cases);
    assert_true(n_cases > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
